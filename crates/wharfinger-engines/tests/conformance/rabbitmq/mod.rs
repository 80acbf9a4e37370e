//! The promises of the broker, kept by a real RabbitMQ: what is confirmed comes out, late at worst and twice at
//! worst.

mod delays;
mod outages;
mod publishing;
mod receiving;
mod refusals;
mod site;
mod waking;
