//! The integration tests: one binary, driven through HTTP and the command line, against real servers.

mod crash;
mod hangup;
mod kill;
mod oracle;
mod races;
mod test_app;
