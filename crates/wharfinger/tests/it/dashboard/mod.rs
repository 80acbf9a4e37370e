//! The dashboard: its calls, the cache of their answers, and the event stream.

mod cache;
mod figures;
mod stream;
