//! What the remote stores share: calls with retries, errors, ranges, listings and the probe. Azure and Google use
//! [`Client`]; S3 has its own SDK and uses the rest.

mod call;
mod errors;
mod features;
pub(crate) mod list;
pub(crate) mod object;
pub(crate) mod probe;

pub(crate) use call::{Call, Client, Service, from_xml};
pub(crate) use errors::{CallError, absent_is_ok, cannot, element};
pub(crate) use features::{Features, SharedFeatures};
