//! A process is killed again and again while it accepts events. Acknowledged events are stored as the mode promises.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinSet;

use super::EventServer;
use crate::long::{self, FIXED_SEED};

const ROUNDS: usize = 30;
const FEW_ROUNDS: usize = 4;
const CLIENTS: usize = 4;

/// Sends until the server is killed, and returns the acknowledged events.
async fn send_until_killed(sender: super::Sender, next: Arc<AtomicU64>, mut random: StdRng) -> Vec<u64> {
    let mut accepted = Vec::new();
    loop {
        // On a fast disk more batches would pile up than the test can wait for.
        tokio::time::sleep(Duration::from_millis(random.random_range(0..4))).await;
        let count = random.random_range(1..30);
        let first = next.fetch_add(count, Ordering::SeqCst);
        if !sender.try_ids(first..first + count).await {
            return accepted;
        }
        accepted.extend(first..first + count);
    }
}

/// Kills the server at a random moment, and returns the events that were acknowledged before.
async fn run_until_killed(server: &mut EventServer, next: &Arc<AtomicU64>, random: &mut StdRng) -> Vec<u64> {
    server.start();
    let sender = server.sender();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(send_until_killed(sender.clone(), next.clone(), StdRng::from_rng(random)));
    }
    // The sleep chooses a random moment. It does not wait for a condition.
    let runtime = Duration::from_millis(random.random_range(20..500));
    tokio::time::sleep(runtime).await;
    server.kill();
    clients.join_all().await.concat()
}

/// Returns the acknowledged events that are not stored, and checks that none is stored twice.
async fn missing(server: &EventServer, accepted: &[u64]) -> Vec<u64> {
    let ids = server.ids().await;
    let set: BTreeSet<u64> = ids.iter().copied().collect();
    assert_eq!(ids.len(), set.len(), "some events are stored twice");
    accepted.iter().copied().filter(|id| !set.contains(id)).collect()
}

async fn assert_nothing_is_missing(server: &EventServer, accepted: &[u64]) {
    let missing = missing(server, accepted).await;
    let first = &missing[..missing.len().min(10)];
    assert!(missing.is_empty(), "{} of {} are missing, the first: {first:?}", missing.len(), accepted.len());
}

/// Starts the server once more and waits until it has stored everything that is left on disk.
async fn recover(server: &mut EventServer, accepted: &[u64]) {
    server.start();
    let started = Instant::now();
    while !missing(server, accepted).await.is_empty() && started.elapsed() < super::TIMEOUT {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.terminate();
}

async fn events_on_disk(rounds: usize, seed: u64) {
    let mut random = long::random(seed);
    let (mut server, proxy) = EventServer::in_bucket(&[("INGEST_BATCH_EVENTS", "50")]).await;
    let next = Arc::new(AtomicU64::new(0));
    let mut accepted = Vec::new();
    for round in 0..rounds {
        match round % 2 {
            0 => proxy.cut(),
            _ => proxy.repair().expect("the network"),
        }
        accepted.extend(run_until_killed(&mut server, &next, &mut random).await);
    }
    assert!(accepted.len() > 100, "too few events for a meaningful test: {}", accepted.len());
    proxy.repair().expect("the network");
    recover(&mut server, &accepted).await;
    assert_nothing_is_missing(&server, &accepted).await;
}

async fn events_in_the_store(rounds: usize, seed: u64) {
    let mut random = long::random(seed);
    let mut server = EventServer::new(&[("INGEST_ACK", "stored"), ("INGEST_BATCH_AGE_MS", "10")]);
    let next = Arc::new(AtomicU64::new(0));
    let mut accepted = Vec::new();
    for _ in 0..rounds {
        accepted.extend(run_until_killed(&mut server, &next, &mut random).await);
        assert_nothing_is_missing(&server, &accepted).await;
    }
    assert!(accepted.len() > 100, "too few events for a meaningful test: {}", accepted.len());
}

async fn events_in_memory(rounds: usize, seed: u64) {
    let mut random = long::random(seed);
    let mut server = EventServer::new(&[("INGEST_ACK", "memory"), ("INGEST_BATCH_AGE_MS", "10")]);
    let next = Arc::new(AtomicU64::new(0));
    let mut accepted = Vec::new();
    for _ in 0..rounds {
        accepted.extend(run_until_killed(&mut server, &next, &mut random).await);
    }
    let lost = missing(&server, &accepted).await;
    assert!(lost.len() < accepted.len(), "{} of {}", lost.len(), accepted.len());
    // A graceful stop loses nothing.
    server.start();
    let sender = server.sender();
    let first = next.load(Ordering::SeqCst);
    for id in (first..first + 1_000).step_by(100) {
        sender.ids(id..id + 100).await;
    }
    server.terminate();
    let kept: Vec<u64> = (first..first + 1_000).collect();
    assert_nothing_is_missing(&server, &kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ack_disk_loses_and_duplicates_nothing_with_and_without_the_store() {
    events_on_disk(FEW_ROUNDS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ack_stored_loses_and_duplicates_nothing() {
    events_in_the_store(FEW_ROUNDS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ack_memory_loses_only_the_last_events() {
    events_in_memory(FEW_ROUNDS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn events_under_many_kills() {
    events_on_disk(ROUNDS, long::seed()).await;
    events_in_the_store(ROUNDS, long::seed()).await;
    events_in_memory(ROUNDS, long::seed()).await;
}
