//! Changes as server-sent events: each part of what its caller may see, once at the beginning and then whenever it is not
//! what it was. It ends with its token, and when the process is about to stop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;
use wharfinger_catalog::{Notification, Scope};
use wharfinger_lifecycle::UnixMs;

use super::dashboard::{DashboardView, TrendView};
use super::extract::{Asked, TenantQuery};
use super::problem::Problem;
use super::wire::{NotificationView, QuotaView};
use super::{Shared, maintenance, sweeps};
use crate::app::App;
use crate::auth::Session;
use crate::core::{Caller, Role, VerbError};
use crate::dashboard::StreamPlace;
use crate::dashboard::live::Watch;

const TICK: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What does not change by the second is looked at every so many ticks.
const SLOW_TICKS: u64 = 3;
/// Of more notifications at once than this, the oldest are only found in the list.
const NOTIFICATIONS_MAX: usize = 20;

/// Watch changes
#[utoipa::path(
    get, path = "/api/v2/stream", tag = "dashboard", operation_id = "stream",
    params(TenantQuery),
    responses(
        (status = 200, content_type = "text/event-stream", body = String,
            description = "Events `dashboard`, `trend`, `quota`, `notification`; for admins `cleanups`; for operators `sweeps` and \
                `spool`: each with the JSON that its call answers. `trouble` when something cannot be read at the moment, `bye` before the end.",
            example = "event: quota\ndata: {\"tenant\":\"default\",\"used\":13,\"limit\":10737418240,\"reserved\":0}\n\n"),
        (status = 403, body = Problem, description = "`tenant` names another one, and the caller is no operator"),
        (status = 503, body = Problem, description = "`unavailable`: too many watch already"),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    session: Session,
    Asked(query): Asked<TenantQuery>,
) -> Result<impl IntoResponse, Problem> {
    let scope = query.scope(&session.caller)?;
    let Some(place) = app.dashboard.stream_place(&session.caller) else {
        return Err(Problem::unavailable_because("as many watch already as may"));
    };
    let watcher = Watcher {
        watch: app.dashboard.live.watch(scope.clone()),
        scope,
        app,
        caller: session.caller,
        expires_at: session.expires_at,
        ticks: 0,
        sent: BTreeMap::new(),
        told: None,
        ready: VecDeque::new(),
        is_over: false,
        _place: place,
    };
    let events = futures::stream::unfold(watcher, async |mut watcher| {
        let event = watcher.next().await?;
        Some((Ok::<_, Infallible>(event), watcher))
    });
    // A proxy that gathers answers would hold back what is meant to be seen now.
    let unbuffered = [("x-accel-buffering", "no")];
    Ok((unbuffered, Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))))
}

struct Watcher {
    app: Shared,
    caller: Caller,
    expires_at: UnixMs,
    scope: Scope,
    watch: Watch,
    ticks: u64,
    /// What was sent last of each part, without its ages.
    sent: BTreeMap<&'static str, Value>,
    /// The last notifications that were there; none before the first look. Not the newest alone: the order of ids is not
    /// that of commits.
    told: Option<BTreeSet<Uuid>>,
    ready: VecDeque<Event>,
    is_over: bool,
    _place: StreamPlace,
}

impl Watcher {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            let app = self.app.clone();
            if self.ticks > 0
                && app.core.draining.run_until_cancelled(tokio::time::sleep(TICK)).await.is_none()
            {
                self.end("the server is stopping");
            } else if app.core.clock.now() >= self.expires_at {
                self.end("the token has expired");
            } else {
                match app.core.draining.run_until_cancelled(self.look(&app)).await {
                    Some(Ok(())) => drop(self.sent.remove("trouble")),
                    Some(Err(error)) => {
                        // Whoever was told of trouble is told when it is over, also if nothing else has changed.
                        self.sent.remove("dashboard");
                        self.offer("trouble", json!({ "detail": Problem::from(error).brief().1 }));
                    }
                    None => self.end("the server is stopping"),
                }
            }
            self.ticks += 1;
        }
    }

    fn end(&mut self, reason: &str) {
        self.offer("bye", json!({ "reason": reason }));
        self.is_over = true;
    }

    /// Sends a part unless it is what was sent last.
    fn offer(&mut self, name: &'static str, part: impl Serialize) {
        let Ok(part) = serde_json::to_value(part) else { return };
        let mut ageless = part.clone();
        forget_ages(&mut ageless);
        if self.sent.get(name) != Some(&ageless) {
            self.sent.insert(name, ageless);
            self.ready.push_back(Event::default().event(name).data(part.to_string()));
        }
    }

    async fn look(&mut self, app: &App) -> Result<(), VerbError> {
        let seen = self.watch.look(&app.core).await?;
        self.offer("dashboard", DashboardView::from(seen.figures.clone()));
        self.offer("trend", TrendView::from(seen.trend.as_slice()));
        self.tell(app).await?;
        if !self.ticks.is_multiple_of(SLOW_TICKS) {
            return Ok(());
        }
        let tenant = match &self.scope {
            Scope::All => self.caller.tenant.clone(),
            Scope::Tenant(tenant) | Scope::User(tenant, _) => tenant.clone(),
        };
        let quota = app.core.catalog.quota(&tenant, app.core.settings.default_quota_bytes).await?;
        self.offer("quota", QuotaView::new(tenant.as_str(), quota));
        if matches!(self.caller.role, Role::Admin | Role::Operator) {
            let cleanups = maintenance::cleanup_status(app, &self.scope).await?;
            self.offer("cleanups", cleanups);
        }
        if self.caller.role == Role::Operator {
            self.offer("sweeps", sweeps::all(app).await?);
            self.offer("spool", maintenance::spool_state(app));
        }
        Ok(())
    }

    /// What the caller was told since the last look, the oldest first.
    async fn tell(&mut self, app: &App) -> Result<(), VerbError> {
        let (tenant, user) = (&self.caller.tenant, &self.caller.user);
        let newest = app.core.catalog.notifications(tenant, user, None, NOTIFICATIONS_MAX).await?;
        let told = self.told.replace(newest.iter().map(|told| told.id).collect());
        let Some(before) = told else { return Ok(()) };
        let is_new = |told: &Notification| !before.contains(&told.id);
        for told in newest.into_iter().filter(is_new).rev() {
            let Ok(event) = Event::default().event("notification").json_data(NotificationView::from(told))
            else {
                continue;
            };
            self.ready.push_back(event);
        }
        Ok(())
    }
}

/// What only grows as time goes by is no change.
fn forget_ages(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("oldestAge");
            members.values_mut().for_each(forget_ages);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_ages),
        _ => {}
    }
}
