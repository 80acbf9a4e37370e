//! Wharfinger: direct uploads to object storage with quotas. Each upload is confirmed, deleted or reclaimed, and each
//! delete also removes the bytes. Runs on SQLite and local disk, or on PostgreSQL and a remote store.

// Output for users goes through `cli::output`.
#![warn(clippy::print_stdout)]

pub mod app;
pub mod auth;
pub mod batches;
pub mod checks;
pub mod cli;
pub mod clock;
pub mod config;
pub mod core;
pub mod dashboard;
pub mod demo;
pub mod hooks;
pub mod http;
pub mod ingest;
pub mod memory_budget;
pub mod notify;
pub mod pipeline;
pub mod quota;
pub mod roles;
pub mod rules;
pub mod store;
pub mod sweeps;
pub mod telemetry;
pub mod uploads;
pub mod worker;
