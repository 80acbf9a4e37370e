//! Drivers for all services except the catalog and the stores: quotas on Redis, RabbitMQ, the event spool on disk,
//! virus scanning (clamd), embeddings, webhooks, and the messages of object stores about new objects.

pub mod embeddings;
pub mod object_events;
pub mod rabbitmq;
pub mod redis_quota;
pub mod scanner;
pub mod spool;
pub mod webhooks;
