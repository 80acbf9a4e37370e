//! Engines beside the database: each works as it is meant to, and its loss is survived.

mod doctor;
mod fleet;
mod rabbit;
mod redis_lost;
mod redis_quota;
