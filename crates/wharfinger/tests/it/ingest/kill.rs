//! A process that is killed again and again while it takes events: what it acknowledged is there, as its mode promises.

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

/// Sends until the server is gone; answers what it acknowledged.
async fn send_on(sender: super::Sender, next: Arc<AtomicU64>, mut random: StdRng) -> Vec<u64> {
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

/// Kills it at a random moment; answers what was acknowledged until then.
async fn one_life(server: &mut EventServer, next: &Arc<AtomicU64>, random: &mut StdRng) -> Vec<u64> {
    server.start();
    let sender = server.sender();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(send_on(sender.clone(), next.clone(), StdRng::from_rng(random)));
    }
    // A random moment is what is asked for: nothing is waited for here.
    let life = Duration::from_millis(random.random_range(20..500));
    tokio::time::sleep(life).await;
    server.kill();
    clients.join_all().await.concat()
}

/// Nothing twice; of what was acknowledged, what is missing.
async fn missing(server: &EventServer, accepted: &[u64]) -> Vec<u64> {
    let ids = server.ids().await;
    let set: BTreeSet<u64> = ids.iter().copied().collect();
    assert_eq!(ids.len(), set.len(), "some are there twice");
    accepted.iter().copied().filter(|id| !set.contains(id)).collect()
}

async fn assert_nothing_is_missing(server: &EventServer, accepted: &[u64]) {
    let missing = missing(server, accepted).await;
    let first = &missing[..missing.len().min(10)];
    assert!(missing.is_empty(), "{} of {} are missing, the first: {first:?}", missing.len(), accepted.len());
}

/// One life more, in which all that is left is taken up.
async fn settle(server: &mut EventServer, accepted: &[u64]) {
    server.start();
    let started = Instant::now();
    while !missing(server, accepted).await.is_empty() && started.elapsed() < super::PATIENCE {
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
        accepted.extend(one_life(&mut server, &next, &mut random).await);
    }
    assert!(accepted.len() > 100, "the run proves something: {}", accepted.len());
    proxy.repair().expect("the network");
    settle(&mut server, &accepted).await;
    assert_nothing_is_missing(&server, &accepted).await;
}

async fn events_in_the_store(rounds: usize, seed: u64) {
    let mut random = long::random(seed);
    let mut server = EventServer::new(&[("INGEST_ACK", "stored"), ("INGEST_BATCH_AGE_MS", "10")]);
    let next = Arc::new(AtomicU64::new(0));
    let mut accepted = Vec::new();
    for _ in 0..rounds {
        accepted.extend(one_life(&mut server, &next, &mut random).await);
        assert_nothing_is_missing(&server, &accepted).await;
    }
    assert!(accepted.len() > 100, "the run proves something: {}", accepted.len());
}

async fn events_in_memory(rounds: usize, seed: u64) {
    let mut random = long::random(seed);
    let mut server = EventServer::new(&[("INGEST_ACK", "memory"), ("INGEST_BATCH_AGE_MS", "10")]);
    let next = Arc::new(AtomicU64::new(0));
    let mut accepted = Vec::new();
    for _ in 0..rounds {
        accepted.extend(one_life(&mut server, &next, &mut random).await);
    }
    let lost = missing(&server, &accepted).await;
    assert!(lost.len() < accepted.len(), "{} of {}", lost.len(), accepted.len());
    // Who is asked to stop loses nothing.
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
async fn on_disk_nothing_is_lost_and_nothing_doubled_store_or_not() {
    events_on_disk(FEW_ROUNDS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_store_nothing_is_lost_and_nothing_doubled() {
    events_in_the_store(FEW_ROUNDS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory_only_what_was_there_last_is_lost() {
    events_in_memory(FEW_ROUNDS, FIXED_SEED).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn events_under_many_kills() {
    events_on_disk(ROUNDS, long::seed()).await;
    events_in_the_store(ROUNDS, long::seed()).await;
    events_in_memory(ROUNDS, long::seed()).await;
}
