//! Engines beside the catalog and the stores: quotas on Redis, RabbitMQ, events that wait on disk (the spool), the
//! scanner (clamd), embeddings and webhooks.

pub mod embeddings;
pub mod rabbitmq;
pub mod redis_quota;
pub mod scanner;
pub mod spool;
pub mod webhooks;
