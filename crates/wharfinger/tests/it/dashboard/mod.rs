//! How things stand, as people see it: the calls, what is kept of their answers, and changes as they happen.

mod cache;
mod figures;
mod stream;
