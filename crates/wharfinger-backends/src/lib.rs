//! Everything outside the process: the catalog (SQLite, PostgreSQL), the blobs (local disk, S3, Azure, GCS), quotas on
//! Redis, the broker (RabbitMQ), events that wait on disk (the spool), the scanner (clamd), embeddings, webhooks, and the faults that tests put in front of all
//! of them.

pub mod blobs;
pub mod broker;
pub mod catalog;
pub mod embeddings;
pub mod faults;
pub mod key_sources;
pub mod quota;
pub mod scanner;
pub mod spool;
pub mod tls;
pub mod webhooks;
