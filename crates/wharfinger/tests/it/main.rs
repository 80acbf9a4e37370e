//! The integration tests: one binary, driven through HTTP and the command line, against real servers.

mod batches;
mod cli;
mod crash;
mod dashboard;
mod demo;
mod deploy;
mod docs;
mod engines;
mod hangup;
mod http;
mod ingest;
mod kill;
mod long;
mod many;
mod notify;
mod oracle;
mod page;
mod pipeline;
mod races;
mod reconcile;
mod store_mark;
mod stores;
mod sweeps;
mod test_app;
mod tidy;
mod uploads;
