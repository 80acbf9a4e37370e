//! The integration tests: one binary, driven through HTTP and the command line, against real servers.

mod crash;
mod oracle;
mod test_app;
