//! The real servers of the tests. The harness finds or unpacks them, starts them on private ports, makes them fail on
//! request, and stops them, also when the process that started them is killed.

mod account;
pub mod azurite;
pub mod browser;
pub mod clamd;
mod command;
pub mod deny;
pub mod documents;
mod error;
mod http;
mod installation;
mod node_packages;
pub mod packages;
mod percent;
pub mod postgres;
pub mod promtool;
pub mod proxy;
mod python_packages;
pub mod rabbitmq;
pub mod radosgw;
pub mod redis;
pub mod schemathesis;
pub mod scripted;
mod server;
mod sharing;
mod store_address;
mod store_server;

pub use error::Error;
pub use http::Answer;
pub use server::free_address;
