//! What every backend promises, method by method: the same cases for each catalog and for each blob store, so
//! that the program can rely on either without asking which it has; and what the broker and webhooks
//! promise.

mod blobs;
mod broker;
mod catalog;
mod quota;
mod webhooks;
