//! Conformance tests of the drivers for RabbitMQ, Redis quotas, the scanner, embeddings and webhooks.

mod embeddings;
mod rabbitmq;
mod redis_quota;
mod scanner;
mod webhooks;
