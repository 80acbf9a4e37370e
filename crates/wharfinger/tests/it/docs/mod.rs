//! The documentation: every link has a target, and the examples run as they are written.

mod examples;
mod links;
mod readme;

pub use links::anchors;
