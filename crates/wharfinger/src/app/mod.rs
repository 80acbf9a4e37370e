//! All parts of a process: the core and the state of each subsystem.

mod open;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use crate::auth::{ServiceKeys, TokenKeys};
use crate::checks::messages::Broker;
use crate::core::Core;
use crate::dashboard::Dashboard;
use crate::hooks::Hooks;
use crate::ingest::Ingest;
use crate::memory_budget::MemoryBudget;
use crate::notify::Notifier;
use crate::pipeline::Pipeline;
use crate::quota::Quota;
use crate::roles::Roles;
use crate::rules::Rules;
use crate::uploads::Uploads;

pub struct App {
    pub core: Arc<Core>,
    /// All roles by default. `serve` sets them from `--role`.
    pub roles: Roles,
    pub quota: Arc<Quota>,
    pub rules: Arc<Rules>,
    /// Set by `start_ingest`.
    pub ingest: OnceLock<Arc<Ingest>>,
    pub uploads: Uploads,
    pub hooks: Hooks,
    /// RabbitMQ, if it is configured.
    pub broker: Option<Broker>,
    pub pipeline: Arc<Pipeline>,
    /// The webhook and Slack, if they are configured.
    pub notifier: Notifier,
    pub dashboard: Dashboard,
    pub tokens: TokenKeys,
    pub service_keys: ServiceKeys,
    /// The memory that request bodies may use together.
    pub request_bodies: MemoryBudget,
    /// When the metrics count stuck files and orphans again. A slow count is not repeated at every scrape.
    pub count_findings_at: Mutex<Instant>,
    /// The last tenant that the metrics have compared with its limit, and how many were near it so far.
    pub full_tenants: Mutex<(String, u64)>,
}
