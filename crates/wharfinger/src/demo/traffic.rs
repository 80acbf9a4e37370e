//! The two minutes, second by second: what users do all the time, and what goes wrong at its hour.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use serde_json::json;

use super::client::{Client, Crew};
use super::faults::{self, Away};
use super::worker::{self, Shift};
use super::{Speed, TURNS, Wharf, cargo};

/// Whoever looks at the page, as a tenant and a user: where their objects lie is known.
const LOCAL: (&str, &str) = ("default", "local");
const EVENTS_A_SECOND: usize = 200;
/// What cannot be deleted stays so for a while after it was given up, for everybody to see.
const EXHAUSTED_FOR: u64 = 10;
/// How long a slow machine may take for what is there at the beginning.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many more turns what is left at the end may take.
const EXTRA_TURNS: u64 = 60;
/// The store of events comes back at the first of these turns if events wait on disk by then, and at the second if none do.
const EVENTS_STORE_BACK: u64 = 38;
const EVENTS_STORE_BACK_AT_LAST: u64 = 90;
const PREPARE_PAUSE: Duration = Duration::from_millis(200);

/// What is broken at the moment. Nothing stays so.
#[derive(Default)]
struct Broken {
    events: Option<Away>,
    blobs: Option<Away>,
    undeletable: Option<Undeletable>,
    /// The second in which the delete of it was given up.
    exhausted_at: Option<u64>,
    copied: Option<PathBuf>,
}

/// A file that is to be deleted, and what stands in the place of its object.
struct Undeletable {
    file: String,
    obstacle: PathBuf,
}

/// Plays it all once, and tells each turn of events to `say`.
pub async fn run(wharf: &Wharf, crew: &Crew, speed: Speed, say: &(dyn Fn(u64, &str) + Sync)) {
    let shift = Arc::new(Shift::default());
    // It works until the program ends: files that wait for it after the traffic would be stuck.
    let (client, on_shift) = (crew.worker.clone(), shift.clone());
    tokio::spawn(async move { worker::work(&client, &on_shift).await });
    let mut broken = Broken::default();
    let doomed = prepare(crew).await;
    for second in 0..TURNS + EXTRA_TURNS {
        let is_over = second >= TURNS;
        if is_over && broken.undeletable.is_none() {
            break;
        }
        let began = tokio::time::Instant::now();
        turn(second, wharf, crew, (&shift, &mut broken, &doomed), say).await;
        insist_on_the_delete(second, crew, &mut broken, say).await;
        bring_back_the_events_store(second, crew, &mut broken, say).await;
        if !is_over {
            users(second, wharf, crew, &broken).await;
            let _ = tokio::time::timeout_at(began + speed.turn(), more_users(second, crew)).await;
        }
        tokio::time::sleep_until(began + speed.turn()).await;
    }
}

fn pick(users: &[Client]) -> &Client {
    users.choose(&mut rand::rng()).unwrap_or(&users[0])
}

/// What happens every second, and what happens in some. The page is about these, so that a slow machine takes longer for
/// them than a second, and leaves none out.
async fn users(second: u64, wharf: &Wharf, crew: &Crew, broken: &Broken) {
    let every = |seconds: u64| second.is_multiple_of(seconds);
    let lines: String = (0..EVENTS_A_SECOND)
        .map(|n| format!("{}\n", json!({ "what": cargo::words(1), "second": second, "number": n })))
        .collect();
    crew.users[0].events(lines).await;
    pick(&crew.users).upload(&cargo::document()).await;
    if every(3) {
        let user = pick(&crew.users);
        let document = cargo::document();
        // Nobody comes back for either.
        if let Some(grant) = user.init(&document).await
            && every(2)
        {
            user.put(&grant, &document).await;
        }
    }
    if every(7) {
        pick(&crew.users).upload(&cargo::torn()).await;
    }
    if second % 20 == 8 {
        crew.local.upload(&cargo::infected()).await;
    }
    if second % 10 == 3 {
        let cargo: Vec<_> = (0..4).map(|_| cargo::document()).collect();
        let uploaded = if every(2) { 4 } else { 3 };
        pick(&crew.users).batch(&cargo, uploaded).await;
    }
    if second % 9 == 2 && broken.blobs.is_none() {
        let _ = faults::leave_orphan(&wharf.blobs);
    }
}

/// Who else comes, as far as the second goes.
async fn more_users(second: u64, crew: &Crew) {
    let every = |seconds: u64| second.is_multiple_of(seconds);
    if every(5) {
        crew.local.upload(&cargo::document()).await;
    }
    if every(4) {
        let user = pick(&crew.users);
        if let Some(file) = user.files("ready").await.choose(&mut rand::rng()) {
            user.delete(file["fileId"].as_str().unwrap_or_default()).await;
        }
    }
    for _ in 0..rand::rng().random_range(0..3) {
        pick(&crew.users).upload(&cargo::document()).await;
    }
}

/// What has to be there before anything goes wrong, however slow the machine: one file that fails, and two files that
/// are ready, which it answers.
async fn prepare(crew: &Crew) -> Vec<String> {
    crew.local.upload(&cargo::torn()).await;
    let mut doomed = Vec::new();
    let are_ready = async {
        while doomed.len() < 2 {
            match crew.local.upload(&cargo::document()).await {
                Some(file) => doomed.push(file),
                None => tokio::time::sleep(PREPARE_PAUSE).await,
            }
        }
        loop {
            let ready = crew.local.files("ready").await;
            if doomed.iter().all(|id| ready.iter().any(|file| file["fileId"] == **id)) {
                return;
            }
            tokio::time::sleep(PREPARE_PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(PATIENCE, are_ready).await;
    doomed
}

/// Tries the delete that cannot be done until it is given up, and makes way for it when everybody could see that.
async fn insist_on_the_delete(
    second: u64,
    crew: &Crew,
    broken: &mut Broken,
    say: &(dyn Fn(u64, &str) + Sync),
) {
    if !second.is_multiple_of(3) {
        return;
    }
    let Some(undeletable) = &broken.undeletable else { return };
    match broken.exhausted_at {
        None => {
            // Nobody may have been there to accept it.
            crew.local.delete(&undeletable.file).await;
            let tried = crew.operator.post("/api/v1/maintenance/cleanup/trigger", json!({})).await;
            let is_exhausted = tried.is_some_and(|tried| tried["exhausted"].as_u64() > Some(0));
            broken.exhausted_at = is_exhausted.then_some(second);
        }
        Some(at) if second >= 100.max(at + EXHAUSTED_FOR) => {
            let _ = std::fs::remove_dir_all(&undeletable.obstacle);
            if crew.operator.post("/api/v1/maintenance/cleanup/trigger", json!({})).await.is_some() {
                broken.undeletable = None;
                say(second, "what stood in the way of a delete is gone, and so are the bytes");
            }
        }
        Some(_) => {}
    }
}

/// Not before events wait on disk: how long the server tries to store them first does not depend on the demo's speed.
async fn bring_back_the_events_store(
    second: u64,
    crew: &Crew,
    broken: &mut Broken,
    say: &(dyn Fn(u64, &str) + Sync),
) {
    if second < EVENTS_STORE_BACK || broken.events.is_none() {
        return;
    }
    let spool = crew.operator.get("/api/v2/maintenance/spool").await.unwrap_or_default();
    if spool["spool"]["files"].as_u64() > Some(0) || second >= EVENTS_STORE_BACK_AT_LAST {
        drop(broken.events.take());
        say(second, "the events' store is back: what waited is recovered, oldest first");
    }
}

/// What goes wrong at this second, or comes right again.
async fn turn(
    second: u64,
    wharf: &Wharf,
    crew: &Crew,
    (shift, broken, doomed): (&Shift, &mut Broken, &[String]),
    say: &(dyn Fn(u64, &str) + Sync),
) {
    let said = match second {
        2 => {
            for (tenant, limit) in [("acme", 64 << 20), ("globex", 2 << 20), ("initech", 1 << 20)] {
                let path = format!("/api/v2/tenants/{tenant}/quota");
                crew.operator.call(reqwest::Method::PUT, &path, Some(json!({ "limit": limit }))).await;
            }
            "three tenants upload; some uploads are never confirmed, and are reclaimed after 15 seconds"
        }
        12 | 40 | 96 => {
            shift.vanishes.store(true, Ordering::Relaxed);
            "a worker takes files and vanishes: they get stuck, and are sent on when its lease is over"
        }
        20 => {
            broken.events = Away::take(&wharf.events).ok();
            "the events' store goes away: events are acknowledged all the same, and wait on disk"
        }
        45 => {
            broken.blobs = Away::take(&wharf.blobs).ok();
            "the files' store goes away: uploads are refused, deletes are accepted and wait"
        }
        53 => {
            drop(broken.blobs.take());
            "the files' store is back: the deletes are carried out"
        }
        58 => {
            if let Some(file) = doomed.first() {
                broken.undeletable = break_a_delete(wharf, crew, file).await;
            }
            "an object refuses to be deleted: its cleanup is tried until it is exhausted"
        }
        55 => {
            broken.copied = faults::leave_many_orphans(&wharf.blobs).ok();
            "another program copies 400 objects here: too many to delete without a person, so the scan stops and reports"
        }
        64 => {
            if let Some(file) = doomed.last() {
                let _ = faults::lose_object(&wharf.blobs, LOCAL, file);
            }
            "a live file loses its object: the next scan reports it as missing"
        }
        70 => {
            shift.is_off.store(true, Ordering::Relaxed);
            "the workers stay away: the queue for `embed` grows, and nobody's file fails for that"
        }
        84 => {
            shift.is_off.store(false, Ordering::Relaxed);
            "the workers are back, and the queue drains"
        }
        88 => {
            redrive(crew).await;
            "an operator redrives two dead letters"
        }
        92 => {
            for _ in 0..20 {
                crew.users[2].upload(&cargo::bulky(100_000)).await;
            }
            "initech has used its quota up: uploads are refused until something is deleted"
        }
        98 => {
            if let Some(folder) = broken.copied.take() {
                let _ = std::fs::remove_dir_all(folder);
            }
            "somebody takes the 400 objects back"
        }
        _ => return,
    };
    say(second, said);
}

async fn break_a_delete(wharf: &Wharf, crew: &Crew, file: &str) -> Option<Undeletable> {
    let obstacle = faults::make_undeletable(&wharf.blobs, LOCAL, file).ok()?;
    crew.local.delete(file).await;
    Some(Undeletable { file: file.to_owned(), obstacle })
}

async fn redrive(crew: &Crew) -> Option<()> {
    let letters = crew.operator.get("/api/v2/dlq?limit=2").await?;
    for letter in letters["jobs"].as_array()? {
        crew.operator.post(&format!("/api/v2/dlq/{}/redrive", letter["jobId"].as_str()?), json!({})).await;
    }
    Some(())
}

impl Drop for Broken {
    fn drop(&mut self) {
        let obstacle = self.undeletable.take().map(|undeletable| undeletable.obstacle);
        for path in [obstacle, self.copied.take()].into_iter().flatten() {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
