//! What every call that leaves the process shares: the faults that tests put in front of it, one TLS provider, and what
//! HTTP answers have in common.

pub mod faults;
pub mod http;
pub mod tls;
