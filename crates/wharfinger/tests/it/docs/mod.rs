//! The documentation: every link has a target, and the examples run as they are written.

mod examples;
mod links;
mod readme;
mod tokens;
mod tutorial;

pub use links::anchors;
