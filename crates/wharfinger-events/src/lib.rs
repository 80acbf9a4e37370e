//! Events as bytes: what clients send becomes lines, lines become a batch of gzip, and a batch that lay on disk is
//! looked through before it goes on. Pure: no I/O, no clock.

pub mod body;
pub mod encoding;
pub mod examine;
pub mod name;
pub mod pack;
pub mod tenants;
