//! Redis and RabbitMQ: how the program uses them, and how it survives their loss.

mod doctor;
mod fleet;
mod rabbit;
mod redis_lost;
mod redis_quota;
