//! A tenant's quota on Redis in front of the catalog: the protocol as a state machine, every order of whose steps
//! is tried. Nothing here is used by the program; `cargo test -p quota-model` is all there is to run.
//!
//! # What is modelled
//!
//! One tenant; up to three ids of files; a catalog whose transactions are atomic and durable ([`catalog`]); a Redis
//! whose scripts are atomic and whose state is not to be relied on ([`redis`]); who uploads, deletes, relays
//! refunds, rebuilds, leaves Redis and changes the limit ([`model`]). Each safeguard of the protocol can be taken
//! away ([`rules`]), and [`claims`] says what must hold.
//!
//! A call to Redis that was sent may be executed at any later time and any number of times, after restarts too;
//! its answer may come or not. So no call is ever taken back from the network: being lost is never being
//! executed, and a crash is taking no further step. Neither needs a step of its own. Redis may restart empty or
//! with what it held earlier, change primaries to a replica that lags and back, be flushed, and lose single keys.
//!
//! The announcements of loads are a set. Redis mints a name for each, and knows it together with the run that it was
//! made to; a load is taken under its own name only, and takes away no other. So of two rebuilds that race, the load
//! of the later epoch is taken also after that of the earlier, and the other way round it is refused: a newer or
//! equal epoch stays. The limit does not hang on that refusal, as each name is taken once and the catalog never comes
//! back to an epoch; that Redis, once it has caught up, stays so does. Names that nobody bears are left out, and a
//! name that is lost or expires is a load that is never executed.
//!
//! A rebuild is spared if Redis said to its announcement that it soundly counts under the very epoch that the catalog
//! then turns out to have. Otherwise it takes an epoch above the catalog's and above the one that Redis had; as long as
//! the catalog does not go back Redis is never ahead, which is a claim too, and the second is no more than the first.
//!
//! That nothing is under way is read from Redis and the outbox alone: no id in flight, no line owed. Who crashed
//! with a reservation leaves its id in flight for all to see. One thing is not to be seen there: a late copy of a
//! reservation, executed after its file was inserted and settled, is counted as if it were new, and a late copy
//! of the settling hides it. It takes room until the next load and never lets anything in; `stray` marks it.
//!
//! # What is not
//!
//! Time: nothing expires. Progress: except that Redis fallen behind can be rebuilt, and is not set back by a load, the
//! claims are about what never happens. A catalog restored from a backup, whose epoch goes back: Redis must be flushed
//! then. Two tenants: they share nothing but the server. Bounds: a handful of rebuilds and at most two faults in a
//! run, see [`rules::Scope`]; what needs more of them to go wrong is not found.
//!
//! # How to read a counterexample
//!
//! `cargo test -p quota-model released_id -- --nocapture` prints the way to what breaks without that safeguard:
//! in turn the state (the catalog, the keys of Redis) and the step taken in it. `answered: false` is a call or a
//! transaction that took effect, and whose answer was lost, or a late copy of one. Bits in `inflight` and
//! `refunded` are ids. The way is among the shortest, give or take a step that does not
//! matter.

pub mod catalog;
pub mod claims;
pub mod model;
pub mod redis;
pub mod rules;
pub mod state;
