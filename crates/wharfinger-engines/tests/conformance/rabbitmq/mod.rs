//! Tests with a real RabbitMQ. A confirmed message is always delivered. It can be late, and it can be delivered twice.

mod delays;
mod outages;
mod prefixes;
mod publishing;
mod receiving;
mod refusals;
mod site;
mod waking;
