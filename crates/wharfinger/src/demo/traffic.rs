//! The script of the demo, tick by tick: the traffic of the users, and the faults at their times.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use serde_json::json;

use super::client::{Client, DemoClients};
use super::faults::{self, HiddenFolder};
use super::worker::{self, WorkerFaults};
use super::{DemoServer, Speed, TICKS, files};

/// Tenant and user of the person who watches the page. Their objects are in a known folder.
const LOCAL: (&str, &str) = ("default", "local");
const EVENTS_PER_TICK: usize = 200;
/// Ticks for which the page shows the delete that has no attempts left.
const EXHAUSTED_TICKS: u64 = 10;
/// How long the first files may take on a slow machine.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// Ticks after the end of the traffic for the last fault to be repaired.
const EXTRA_TICKS: u64 = 60;
/// The event store comes back when events wait on disk, but not before the first of these ticks and not after the second.
const EVENT_STORE_BACK: u64 = 38;
const EVENT_STORE_BACK_MAX: u64 = 90;
const PREPARE_PAUSE: Duration = Duration::from_millis(200);

/// The faults that are active now. All are repaired when this is dropped.
#[derive(Default)]
struct ActiveFaults {
    events: Option<HiddenFolder>,
    blobs: Option<HiddenFolder>,
    undeletable: Option<Undeletable>,
    /// The tick in which its cleanup had no attempts left.
    exhausted_at: Option<u64>,
    /// The folder with many orphans.
    copied: Option<PathBuf>,
}

/// A deleted file whose object cannot be deleted, because a folder has its path.
struct Undeletable {
    file: String,
    obstacle: PathBuf,
}

/// Runs the demo once. `report` gets the tick and the text of each fault and repair.
pub async fn run(
    server: &DemoServer,
    clients: &DemoClients,
    speed: Speed,
    report: &(dyn Fn(u64, &str) + Sync),
) {
    let worker_faults = Arc::new(WorkerFaults::default());
    // The worker runs until the program ends: otherwise files that are queued after the traffic would become stuck.
    let (client, its_faults) = (clients.worker.clone(), worker_faults.clone());
    tokio::spawn(async move { worker::work(&client, &its_faults).await });
    let mut active = ActiveFaults::default();
    let prepared = prepare(clients).await;
    for tick in 0..TICKS + EXTRA_TICKS {
        let is_over = tick >= TICKS;
        if is_over && active.undeletable.is_none() {
            break;
        }
        let started = tokio::time::Instant::now();
        apply_faults(tick, server, clients, (&worker_faults, &mut active, &prepared), report).await;
        retry_undeletable(tick, clients, &mut active, report).await;
        restore_event_store(tick, clients, &mut active, report).await;
        if !is_over {
            user_traffic(tick, server, clients, &active).await;
            let _ = tokio::time::timeout_at(started + speed.tick(), extra_traffic(tick, clients)).await;
        }
        tokio::time::sleep_until(started + speed.tick()).await;
    }
}

fn pick(users: &[Client]) -> &Client {
    users.choose(&mut rand::rng()).unwrap_or(&users[0])
}

/// The traffic that the page must show. A slow machine may take longer than a tick for it, but leaves nothing out.
async fn user_traffic(tick: u64, server: &DemoServer, clients: &DemoClients, active: &ActiveFaults) {
    let every = |seconds: u64| tick.is_multiple_of(seconds);
    let lines: String = (0..EVENTS_PER_TICK)
        .map(|n| format!("{}\n", json!({ "what": files::words(1), "second": tick, "number": n })))
        .collect();
    clients.users[0].events(lines).await;
    pick(&clients.users).upload(&files::document()).await;
    if every(3) {
        let user = pick(&clients.users);
        let document = files::document();
        // Neither upload is confirmed.
        if let Some(grant) = user.init(&document).await
            && every(2)
        {
            user.put(&grant, &document).await;
        }
    }
    if every(4) {
        pick(&clients.users).upload(&files::picture()).await;
    }
    if every(7) {
        pick(&clients.users).upload(&files::broken_pdf()).await;
    }
    if tick % 20 == 8 {
        clients.local.upload(&files::infected()).await;
    }
    if tick % 10 == 3 {
        let files: Vec<_> = (0..4).map(|_| files::document()).collect();
        let uploaded = if every(2) { 4 } else { 3 };
        pick(&clients.users).batch(&files, uploaded).await;
    }
    if tick % 9 == 2 && active.blobs.is_none() {
        let _ = faults::create_orphan(&server.blobs);
    }
}

/// More traffic, until the end of the tick.
async fn extra_traffic(tick: u64, clients: &DemoClients) {
    let every = |seconds: u64| tick.is_multiple_of(seconds);
    if every(5) {
        clients.local.upload(&files::document()).await;
    }
    if every(4) {
        let user = pick(&clients.users);
        if let Some(file) = user.files("ready").await.choose(&mut rand::rng()) {
            user.delete(file["fileId"].as_str().unwrap_or_default()).await;
        }
    }
    for _ in 0..rand::rng().random_range(0..3) {
        pick(&clients.users).upload(&files::document()).await;
    }
}

/// Uploads one file that fails and waits for two files that are ready, before the first fault. Returns the ids of the two.
async fn prepare(clients: &DemoClients) -> Vec<String> {
    clients.local.upload(&files::broken_pdf()).await;
    let mut prepared = Vec::new();
    let are_ready = async {
        while prepared.len() < 2 {
            match clients.local.upload(&files::document()).await {
                Some(file) => prepared.push(file),
                None => tokio::time::sleep(PREPARE_PAUSE).await,
            }
        }
        loop {
            let ready = clients.local.files("ready").await;
            if prepared.iter().all(|id| ready.iter().any(|file| file["fileId"] == **id)) {
                return;
            }
            tokio::time::sleep(PREPARE_PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(PREPARE_TIMEOUT, are_ready).await;
    prepared
}

/// Retries the delete that cannot succeed until it has no attempts left. Removes the obstacle some ticks later.
async fn retry_undeletable(
    tick: u64,
    clients: &DemoClients,
    active: &mut ActiveFaults,
    report: &(dyn Fn(u64, &str) + Sync),
) {
    if !tick.is_multiple_of(3) {
        return;
    }
    let Some(undeletable) = &active.undeletable else { return };
    match active.exhausted_at {
        None => {
            // The first request may have failed, so the delete is requested again.
            clients.local.delete(&undeletable.file).await;
            let outcome = clients.operator.post("/api/v1/maintenance/cleanup/trigger", json!({})).await;
            let is_exhausted = outcome.is_some_and(|outcome| outcome["exhausted"].as_u64() > Some(0));
            active.exhausted_at = is_exhausted.then_some(tick);
        }
        Some(at) if tick >= 100.max(at + EXHAUSTED_TICKS) => {
            let _ = std::fs::remove_dir_all(&undeletable.obstacle);
            if clients.operator.post("/api/v1/maintenance/cleanup/trigger", json!({})).await.is_some() {
                active.undeletable = None;
                report(tick, "The obstacle is removed. The bytes of the deleted file are gone.");
            }
        }
        Some(_) => {}
    }
}

/// Waits until events are on disk: how long the server retries before that does not depend on the demo's speed.
async fn restore_event_store(
    tick: u64,
    clients: &DemoClients,
    active: &mut ActiveFaults,
    report: &(dyn Fn(u64, &str) + Sync),
) {
    if tick < EVENT_STORE_BACK || active.events.is_none() {
        return;
    }
    let spool = clients.operator.get("/api/v2/maintenance/spool").await.unwrap_or_default();
    if spool["spool"]["files"].as_u64() > Some(0) || tick >= EVENT_STORE_BACK_MAX {
        drop(active.events.take());
        report(tick, "The event store is back. The waiting events are sent, oldest first.");
    }
}

/// Causes or ends the faults of this tick.
async fn apply_faults(
    tick: u64,
    server: &DemoServer,
    clients: &DemoClients,
    (worker_faults, active, prepared): (&WorkerFaults, &mut ActiveFaults, &[String]),
    report: &(dyn Fn(u64, &str) + Sync),
) {
    let text = match tick {
        2 => {
            for (tenant, limit) in [("acme", 64 << 20), ("globex", 2 << 20), ("initech", 1 << 20)] {
                let path = format!("/api/v2/tenants/{tenant}/quota");
                clients.operator.call(reqwest::Method::PUT, &path, Some(json!({ "limit": limit }))).await;
            }
            "Three tenants upload files. Some uploads are never confirmed. They are removed after 15 seconds."
        }
        12 | 40 | 96 => {
            worker_faults.abandons_jobs.store(true, Ordering::Relaxed);
            "A worker leases files and crashes. They are stuck until its lease expires, then they are queued again."
        }
        20 => {
            active.events = HiddenFolder::hide(&server.events).ok();
            "The event store fails. Events are still accepted, and wait on disk."
        }
        45 => {
            active.blobs = HiddenFolder::hide(&server.blobs).ok();
            "The object store fails. Uploads are refused. Deletes are accepted, and wait."
        }
        53 => {
            drop(active.blobs.take());
            "The object store is back. The waiting deletes are done."
        }
        58 => {
            if let Some(file) = prepared.first() {
                active.undeletable = break_a_delete(server, clients, file).await;
            }
            "An object cannot be deleted. The delete is retried until no attempts are left."
        }
        55 => {
            active.copied = faults::create_many_orphans(&server.blobs).ok();
            "Another program copies 400 objects into the store. The scan does not delete so many: it stops and reports them."
        }
        64 => {
            if let Some(file) = prepared.last() {
                let _ = faults::delete_object(&server.blobs, LOCAL, file);
            }
            "The object of a file is lost. The next scan reports it as missing."
        }
        70 => {
            worker_faults.is_stopped.store(true, Ordering::Relaxed);
            "The workers stop. The queue of the stage embed grows, but no file fails."
        }
        84 => {
            worker_faults.is_stopped.store(false, Ordering::Relaxed);
            "The workers are back. The queue gets shorter."
        }
        88 => {
            redrive(clients).await;
            "An operator processes two failed files again."
        }
        92 => {
            for _ in 0..20 {
                clients.users[2].upload(&files::large(100_000)).await;
            }
            "The tenant initech has used its whole quota. Its uploads are refused until it deletes files."
        }
        98 => {
            if let Some(folder) = active.copied.take() {
                let _ = std::fs::remove_dir_all(folder);
            }
            "The 400 objects are removed again."
        }
        _ => return,
    };
    report(tick, text);
}

async fn break_a_delete(server: &DemoServer, clients: &DemoClients, file: &str) -> Option<Undeletable> {
    let obstacle = faults::make_undeletable(&server.blobs, LOCAL, file).ok()?;
    clients.local.delete(file).await;
    Some(Undeletable { file: file.to_owned(), obstacle })
}

async fn redrive(clients: &DemoClients) -> Option<()> {
    let letters = clients.operator.get("/api/v2/dlq?limit=2").await?;
    for letter in letters["jobs"].as_array()? {
        clients.operator.post(&format!("/api/v2/dlq/{}/redrive", letter["jobId"].as_str()?), json!({})).await;
    }
    Some(())
}

impl Drop for ActiveFaults {
    fn drop(&mut self) {
        let obstacle = self.undeletable.take().map(|undeletable| undeletable.obstacle);
        for path in [obstacle, self.copied.take()].into_iter().flatten() {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
