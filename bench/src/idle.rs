//! The time from start to ready, and the memory and processor time of an idle server.

use std::time::Duration;

use crate::server::Server;
use crate::timing::say;

pub(crate) async fn run() {
    let mut starts = Vec::new();
    for _ in 0..5 {
        starts.push(Server::start(None).await.ready_after);
    }
    starts.sort();
    let server = Server::start(None).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = server.cpu_seconds();
    tokio::time::sleep(Duration::from_secs(20)).await;
    say(format!("start to ready: {:.0} ms (median of 5, fresh data folder)", starts[2].as_secs_f64() * 1e3));
    say(format!(
        "idle: {:.1} MiB resident, {:.2} s CPU in 20 s",
        server.resident_kib() as f64 / 1024.0,
        server.cpu_seconds() - before
    ));
}
