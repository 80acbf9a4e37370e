//! A worker of the demo, outside the server as any other could be: it embeds chunks. Now and then it takes a file and is never
//! heard of again; for a while it does not come to work at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::Rng as _;
use serde_json::{Value, json};

use super::client::Client;

const PAUSE: Duration = Duration::from_millis(300);
const DIMENSIONS: usize = 8;
/// Longer than it takes to be stuck.
const LEASE_MS: u64 = 15_000;

#[derive(Default)]
pub struct Shift {
    pub is_off: AtomicBool,
    pub vanishes: AtomicBool,
}

pub async fn work(client: &Client, shift: &Shift) {
    loop {
        tokio::time::sleep(PAUSE).await;
        if shift.is_off.load(Ordering::Relaxed) {
            continue;
        }
        let asked = json!({ "stages": ["embed"], "max": 8, "leaseMs": LEASE_MS });
        let leased = client.post("/api/v2/workers/lease", asked).await.unwrap_or_default();
        let jobs = leased["jobs"].as_array().cloned().unwrap_or_default();
        if !jobs.is_empty() && shift.vanishes.swap(false, Ordering::Relaxed) {
            continue;
        }
        for job in jobs {
            complete(client, &job).await;
        }
    }
}

async fn complete(client: &Client, job: &Value) -> Option<()> {
    let count = match job["input"]["chunks"].as_array() {
        Some(chunks) => chunks.len(),
        // A large input lies behind a URL; such files are left to their lease.
        None => return None,
    };
    let vectors: Vec<Vec<f32>> = (0..count).map(|_| vector()).collect();
    let body = json!({ "leaseToken": job["leaseToken"], "output": { "vectors": vectors } });
    client.post(&format!("/api/v2/workers/jobs/{}/complete", job["jobId"].as_str()?), body).await?;
    Some(())
}

fn vector() -> Vec<f32> {
    let mut random = rand::rng();
    (0..DIMENSIONS).map(|_| random.random_range(-1.0..1.0)).collect()
}
