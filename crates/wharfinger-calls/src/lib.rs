//! Shared by every crate that calls another service: fault injection for tests, one TLS provider, and helpers for HTTP
//! responses.

pub mod faults;
pub mod http;
pub mod tls;
