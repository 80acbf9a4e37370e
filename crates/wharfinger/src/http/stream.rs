//! Changes as server-sent events. Each part is sent once at the start (except notifications), and then after it has
//! changed. The stream ends when the token expires or the process stops.

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
use super::extract::{QueryParams, TenantQuery};
use super::problem::Problem;
use super::wire::{NotificationView, QuotaView};
use super::{Shared, maintenance, sweeps};
use crate::app::App;
use crate::auth::Session;
use crate::core::{Caller, Role, VerbError};
use crate::dashboard::StreamSlot;
use crate::dashboard::live::Watch;

const TICK: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Parts that change slowly are read once in this many ticks.
const SLOW_TICKS: u64 = 3;
/// The most notifications sent in one tick. Older ones are only in the list.
const NOTIFICATIONS_MAX: usize = 20;

/// Watch changes
#[utoipa::path(
    get, path = "/api/v2/stream", tag = "dashboard", operation_id = "stream",
    params(TenantQuery),
    responses(
        (status = 200, content_type = "text/event-stream", body = String,
            description = "Events `dashboard`, `trend`, `quota`, `notification`; for admins `cleanups`; for operators `sweeps` and \
                `spool`. The data of each is the JSON of the matching call. `trouble`: something cannot be read now. `bye`: the stream ends.",
            example = "event: quota\ndata: {\"tenant\":\"default\",\"used\":13,\"limit\":10737418240,\"reserved\":0}\n\n"),
        (status = 403, body = Problem, description = "`forbidden`: `tenant` is another tenant and the caller is not an operator"),
        (status = 503, body = Problem, description = "`unavailable`: too many streams are open"),
    ),
)]
pub(super) async fn get(
    State(app): State<Shared>,
    session: Session,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<impl IntoResponse, Problem> {
    let scope = query.scope(&session.caller)?;
    let Some(slot) = app.dashboard.stream_slot(&session.caller) else {
        return Err(Problem::unavailable_because(
            "Too many streams are open. Close one, or try again later.",
        ));
    };
    let watcher = Watcher {
        watch: app.dashboard.live.watch(scope.clone()),
        scope,
        app,
        caller: session.caller,
        expires_at: session.expires_at,
        service_key: session.service_key,
        ticks: 0,
        sent: BTreeMap::new(),
        seen: None,
        ready: VecDeque::new(),
        has_ended: false,
        _slot: slot,
    };
    let events = futures::stream::unfold(watcher, async |mut watcher| {
        let event = watcher.next().await?;
        Some((Ok::<_, Infallible>(event), watcher))
    });
    // A proxy that buffers answers would delay the events.
    let unbuffered = [("x-accel-buffering", "no")];
    Ok((unbuffered, Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))))
}

struct Watcher {
    app: Shared,
    caller: Caller,
    expires_at: UnixMs,
    /// The id of the caller's service key.
    service_key: Option<String>,
    scope: Scope,
    watch: Watch,
    ticks: u64,
    /// The last sent value of each part, without its ages.
    sent: BTreeMap<&'static str, Value>,
    /// The newest notifications at the last tick; None before the first tick. The newest id alone is not enough, because
    /// the order of ids is not the order of commits.
    seen: Option<BTreeSet<Uuid>>,
    ready: VecDeque<Event>,
    has_ended: bool,
    _slot: StreamSlot,
}

impl Watcher {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            let app = self.app.clone();
            if self.ticks > 0
                && app.core.draining.run_until_cancelled(tokio::time::sleep(TICK)).await.is_none()
            {
                self.end("the server is stopping");
            } else if app.core.clock.now() >= self.expires_at {
                self.end("the token has expired");
            } else if let Some(id) = &self.service_key
                && !app.service_keys.is_valid(id).await
            {
                self.end("the service key was revoked");
            } else {
                match app.core.draining.run_until_cancelled(self.collect(&app)).await {
                    Some(Ok(())) => drop(self.sent.remove("trouble")),
                    Some(Err(error)) => {
                        // A client that got `trouble` gets the dashboard again when reading works, even if unchanged.
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
        self.has_ended = true;
    }

    /// Sends a part unless it is what was sent last.
    fn offer(&mut self, name: &'static str, part: impl Serialize) {
        let Ok(part) = serde_json::to_value(part) else { return };
        let mut ageless = part.clone();
        remove_ages(&mut ageless);
        if self.sent.get(name) != Some(&ageless) {
            self.sent.insert(name, ageless);
            self.ready.push_back(Event::default().event(name).data(part.to_string()));
        }
    }

    /// Adds an event for each part that changed.
    async fn collect(&mut self, app: &App) -> Result<(), VerbError> {
        let seen = self.watch.snapshot(&app.core).await?;
        self.offer("dashboard", DashboardView::from(seen.figures.clone()));
        self.offer("trend", TrendView::from(seen.trend.as_slice()));
        self.add_notifications(app).await?;
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

    /// Adds an event for each new notification of the caller, oldest first.
    async fn add_notifications(&mut self, app: &App) -> Result<(), VerbError> {
        let (tenant, user) = (&self.caller.tenant, &self.caller.user);
        let newest = app.core.catalog.notifications(tenant, user, None, NOTIFICATIONS_MAX).await?;
        let before = self.seen.replace(newest.iter().map(|notification| notification.id).collect());
        let Some(before) = before else { return Ok(()) };
        let is_new = |notification: &Notification| !before.contains(&notification.id);
        for notification in newest.into_iter().filter(is_new).rev() {
            let view = NotificationView::from(notification);
            if let Ok(event) = Event::default().event("notification").json_data(view) {
                self.ready.push_back(event);
            }
        }
        Ok(())
    }
}

/// Removes ages. They change all the time and are not worth an event.
fn remove_ages(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("oldestAge");
            members.values_mut().for_each(remove_ages);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_ages),
        _ => {}
    }
}
