//! The promises of the blob stores.
