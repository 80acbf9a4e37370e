//! What people look at: counters that move with the files, figures made of them, and checks of the whole catalog.

pub(crate) mod audit;
pub(crate) mod counters;
pub(crate) mod dashboard;
pub(crate) mod facts;
