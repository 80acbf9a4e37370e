//! The protocol of a tenant's quota on Redis in front of the catalog, as a state machine. The tests try every order of
//! its steps. The program does not use this crate. To run it: `cargo test -p quota-model`.
//!
//! # What is modelled
//!
//! One tenant; up to three file ids; a catalog with atomic, durable transactions ([`catalog`]); a Redis with atomic
//! scripts and unreliable state ([`redis`]); uploads, deletes, the relay of refunds, rebuilds, moves back to the
//! database, and changes of the limit ([`model`]). Each safeguard of the protocol can be removed ([`rules`]).
//! [`properties`] says what must hold.
//!
//! A sent call to Redis may be executed at any later time and any number of times, also after restarts. Its answer may
//! be lost. So no call is ever removed from the network. A lost call is a call that is never executed. A crash is a
//! client that takes no further step. Neither needs a step in the model. Redis may restart empty or with older state,
//! fail over to a lagging replica and back, be flushed, and lose single keys.
//!
//! The announcements of loads are a set. Redis creates a name for each and stores it with its own run id. A load is
//! accepted only under its name, and removes no other name. If two rebuilds race, Redis refuses a load if its own epoch
//! is newer or equal. The limit does not depend on this refusal, because each name is used once and the catalog never
//! repeats an epoch. But without the refusal, a current Redis could become outdated again. The model has no names that
//! no client received. A name that is lost or expires is a load that is never executed.
//!
//! A rebuild is skipped if Redis answers the announcement with valid state under the catalog's epoch. Otherwise it
//! takes an epoch above those of the catalog and of Redis. Redis is never ahead unless the catalog goes back; that is a
//! property too.
//!
//! Whether anything is in progress is visible in Redis and the outbox: ids in flight, and outbox lines. A client that
//! crashed after its reservation leaves its id in flight. One thing is not visible: a late copy of a reservation that
//! is executed after its file was inserted and settled. It is counted as new, and a late copy of the settlement removes
//! its id. It uses space until the next load and never admits too much. `late_copy` marks it.
//!
//! # What is not modelled
//!
//! - Time: nothing expires.
//! - Progress: the properties say what never happens, except that an outdated Redis can be rebuilt and no load makes it
//!   outdated.
//! - A catalog restored from a backup, whose epoch goes back. Redis must be flushed then.
//! - Two tenants: they share nothing but the server.
//! - Larger scopes: a run has a few rebuilds and at most two faults (see [`rules::Scope`]). Errors that need more are
//!   not found.
//!
//! # How to read a counterexample
//!
//! `cargo test -p quota-model released_id -- --nocapture` prints the steps to the error without that safeguard. It
//! prints each state (the catalog, the keys of Redis) and the step that follows. `answered: false` is a call or a
//! transaction that took effect and whose answer was lost, or a late copy. Bits in `inflight` and `refunded` are ids.
//! The path is among the shortest, except for steps that do not matter.

pub mod catalog;
pub mod model;
pub mod properties;
pub mod redis;
pub mod rules;
pub mod state;
