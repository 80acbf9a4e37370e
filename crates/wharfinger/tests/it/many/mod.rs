//! Many processes on one catalog.

mod roles;
mod rolling;
mod sweeps;
