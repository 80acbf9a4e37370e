//! What the pages say is so: links lead somewhere, and the examples run as they are written.

mod examples;
mod links;

pub use links::anchors;
