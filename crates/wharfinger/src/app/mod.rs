//! A process assembled: the core, and what each subsystem keeps for itself.

mod open;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use crate::auth::TokenKeys;
use crate::checks::messages::Broker;
use crate::core::Core;
use crate::dashboard::Dashboard;
use crate::ingest::Ingest;
use crate::memory_budget::MemoryBudget;
use crate::notify::Notifier;
use crate::pipeline::Pipeline;
use crate::quota::Quota;
use crate::roles::Roles;
use crate::uploads::Uploads;

pub struct App {
    pub core: Arc<Core>,
    /// All of them, unless whoever opened it says otherwise.
    pub roles: Roles,
    pub quota: Arc<Quota>,
    /// Takes events, once it was started.
    pub ingest: OnceLock<Arc<Ingest>>,
    pub uploads: Uploads,
    /// RabbitMQ, where it brings the delayed checks.
    pub broker: Option<Broker>,
    pub pipeline: Arc<Pipeline>,
    /// The webhook and Slack, where there are any.
    pub notifier: Notifier,
    /// What is shown of how things stand.
    pub dashboard: Dashboard,
    pub tokens: TokenKeys,
    /// What the bodies of requests may take in memory.
    pub request_bodies: MemoryBudget,
    /// When stuck files and orphans are counted again for the metrics: a long backlog not each time that somebody asks.
    pub count_findings_at: Mutex<Instant>,
}
