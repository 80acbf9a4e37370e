//! The worker of the demo. It runs outside the server and embeds chunks. Sometimes it leases files and abandons them, and
//! for a while it does not run at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::Rng as _;
use serde_json::{Value, json};

use super::client::Client;

const PAUSE: Duration = Duration::from_millis(300);
const DIMENSIONS: usize = 8;
/// Longer than STUCK_FILE_THRESHOLD_MS, so that abandoned files become stuck.
const LEASE_MS: u64 = 15_000;

#[derive(Default)]
pub struct WorkerFaults {
    pub is_stopped: AtomicBool,
    /// The worker abandons the next jobs that it leases.
    pub abandons_jobs: AtomicBool,
}

pub async fn work(client: &Client, faults: &WorkerFaults) {
    loop {
        tokio::time::sleep(PAUSE).await;
        if faults.is_stopped.load(Ordering::Relaxed) {
            continue;
        }
        let request = json!({ "stages": ["embed"], "max": 8, "leaseMs": LEASE_MS });
        let leased = client.post("/api/v2/workers/lease", request).await.unwrap_or_default();
        let jobs = leased["jobs"].as_array().cloned().unwrap_or_default();
        if !jobs.is_empty() && faults.abandons_jobs.swap(false, Ordering::Relaxed) {
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
        // A large input is behind a URL. This worker does not fetch it and lets the lease expire.
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
