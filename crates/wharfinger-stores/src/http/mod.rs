//! What the stores over HTTP share: sending with retries, reading errors, ranges and listings, and what a probe does.
//! Azure and Google are spoken to by [`Client`]; S3 has its own SDK and uses the rest.

mod call;
mod errors;
mod learned;
pub(crate) mod list;
pub(crate) mod object;
pub(crate) mod probe;

pub(crate) use call::{Call, Client, Service, from_xml};
pub(crate) use errors::{Failure, doing, element, gone};
pub(crate) use learned::{Findings, Learned};
