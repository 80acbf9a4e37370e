//! What the pages say is so: links lead somewhere, and the examples run as they are written.

mod examples;
mod links;
mod readme;

pub use links::anchors;
