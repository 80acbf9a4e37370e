//! What the broker, quotas on Redis, the scanner, the embeddings and webhooks promise, method by method.

mod embeddings;
mod rabbitmq;
mod redis_quota;
mod scanner;
mod webhooks;
