//! What every backend promises, method by method: the same cases for each catalog and for each blob store, so
//! that the program can rely on either without asking which it has; and what the broker, the scanner, the
//! embeddings and webhooks promise.

mod blobs;
mod broker;
mod catalog;
mod embeddings;
mod quota;
mod scanner;
mod webhooks;
