//! Many processes on one catalog.

mod roles;
mod sweeps;
