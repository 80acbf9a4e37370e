//! `wharfinger demo`: a server with short time limits, and two minutes of traffic and faults against it.

use std::io::IsTerminal as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::output::line;
use super::{Failure, failed, serve, token};
use crate::clock::Clock;
use crate::config::{Flags, Settings, Values};
use crate::demo::{self, Client, DemoClients, DemoServer, Speed};

#[derive(Args)]
pub(super) struct Arguments {
    /// The address to listen on (WHARFINGER_LISTEN)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// How many times faster, 1 to 5: at 1 the traffic lasts two minutes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    speed: u32,
    /// Stop after the traffic instead of running until Ctrl-C
    #[arg(long)]
    and_stop: bool,
}

const TOKENS_MS: i64 = 12 * 3_600_000;
/// How often and how long to wait for the server to start.
const START_TRIES: u32 = 300;
const START_PAUSE: Duration = Duration::from_millis(100);
/// How often to try to delete the folder of the demo.
const END_TRIES: u32 = 50;
const END_PAUSE: Duration = Duration::from_millis(100);
/// Time after the traffic in which the last faults are repaired.
const REPAIR_TICKS: u32 = 30;

pub(super) async fn run(flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    if flags.config.is_some() || flags.overrides.iter().any(|(name, _)| *name != "WHARFINGER_DATA_DIR") {
        return Err(Failure::Usage(
            "the demo uses its own settings: only --data-dir and --listen can be changed".into(),
        ));
    }
    let asked = flags.overrides.iter().find(|(name, _)| *name == "WHARFINGER_DATA_DIR");
    let folder = Folder::make(asked.map(|(_, dir)| Path::new(dir)))?;
    let (blobs, events) = (folder.path.join("blobs"), folder.path.join("events"));
    std::fs::create_dir_all(&events).map_err(failed)?;
    let speed = Speed(arguments.speed);
    let mut overrides = speed.settings();
    overrides.push(("WHARFINGER_DATA_DIR", folder.path.display().to_string()));
    overrides.push(("INGEST_BLOB_URL", format!("file:{}", events.display())));
    overrides.extend(arguments.listen.map(|listen| ("WHARFINGER_LISTEN", listen)));
    // The demo destroys data on purpose: it must not read the settings of a real server.
    let settings = Settings::from_values(&Values::read_alone(&overrides)?)?;
    if settings.listen.ends_with(":0") {
        return Err(Failure::Usage("--listen: the demo needs a fixed port, not 0".into()));
    }
    let server = DemoServer { url: format!("http://{}", settings.listen), blobs, events };
    let stop = CancellationToken::new();
    let serving = serve::run_until(settings.clone(), stop.clone());
    let traffic = run_traffic(&settings, server, speed, stop, arguments.and_stop);
    // The server ends first if it cannot start, or if it is stopped.
    tokio::select! {
        served = serving => served,
        ended = traffic => ended,
    }
}

/// The folder of the demo's data. It is deleted at the end, unless --data-dir has set it.
struct Folder {
    path: PathBuf,
    is_ours: bool,
}

impl Folder {
    fn make(asked: Option<&Path>) -> Result<Folder, Failure> {
        let Some(path) = asked else {
            let name = format!("wharfinger-demo-{:016x}", rand::random::<u64>());
            let path = std::env::temp_dir().join(name);
            std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
            return Ok(Folder { path, is_ours: true });
        };
        std::fs::create_dir_all(path).map_err(failed)?;
        if path.read_dir().map_err(failed)?.next().is_some() {
            let problem =
                format!("--data-dir: {} is not empty, and the demo destroys data there", path.display());
            return Err(Failure::Usage(problem));
        }
        Ok(Folder { path: path.canonicalize().map_err(failed)?, is_ours: false })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A write that was running when the server ended may still create a file.
        for _ in 0..END_TRIES {
            if !self.is_ours || std::fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::sleep(END_PAUSE);
        }
    }
}

async fn run_traffic(
    settings: &Settings,
    server: DemoServer,
    speed: Speed,
    stop: CancellationToken,
    and_stop: bool,
) -> Result<(), Failure> {
    let anonymous = Client::new(&server.url, String::new());
    for _ in 0..START_TRIES {
        if anonymous.is_ready().await {
            break;
        }
        tokio::time::sleep(START_PAUSE).await;
    }
    let mint = |tenant, user, role| {
        let caller = token::caller(tenant, user, role)?;
        token::mint(settings, &caller, Clock::system().now() + TOKENS_MS)
    };
    let client = |tenant, user, role| Ok::<_, Failure>(Client::new(&server.url, mint(tenant, user, role)?));
    let clients = DemoClients {
        users: vec![
            client("acme", "ada", "user")?,
            client("globex", "grace", "user")?,
            client("initech", "ivan", "user")?,
        ],
        local: client("default", "local", "user")?,
        operator: client("ops", "demo", "operator")?,
        worker: client("ops", "worker", "worker")?,
    };
    line("The demo runs two minutes of traffic and many faults. Watch it on this page:");
    line("");
    match std::io::stdout().is_terminal() {
        true => line(format!("  {}/#token={}", server.url, mint("default", "local", "operator")?)),
        // Without a terminal the output may go to a log, and a token must not be in a log.
        false => line(format!("  {}/ with a token from: {}", server.url, token::command(settings))),
    }
    line("");
    let report = |tick: u64, text: &str| line(format!("{:02}:{:02}  {text}", tick / 60, tick % 60));
    demo::run(&server, &clients, speed, &report).await;
    line("02:00  The traffic has ended. The last faults are being repaired.");
    tokio::time::sleep(speed.tick() * REPAIR_TICKS).await;
    for text in summary(&clients.operator).await {
        line(format!("       {text}"));
    }
    if and_stop {
        stop.cancel();
    } else {
        line("Press Ctrl-C to stop.");
    }
    // `run` ends this when the server has stopped.
    std::future::pending().await
}

/// The results of the demo as text, from the server's metrics and figures.
async fn summary(operator: &Client) -> Vec<String> {
    let metrics = operator.metrics().await;
    let sum = |name: &str| -> f64 {
        let is_of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        metrics.lines().filter(is_of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let shown = operator.get("/api/v2/uploads/dashboard").await.unwrap_or_default();
    let pending = operator.get("/api/v1/maintenance/cleanup/pending?limit=1000").await.unwrap_or_default();
    let cleanups = pending["cleanups"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (deleted, waiting): (Vec<_>, Vec<_>) = cleanups
        .iter()
        .partition(|cleanup| cleanup["lastAttemptAt"].is_string() && cleanup["lastError"].is_null());
    vec![
        format!("{} files are ready", shown["statusDistribution"]["ready"]),
        format!("{} unconfirmed uploads were removed", sum("resource_orphaned_files_cleaned_total")),
        format!("{} orphans were deleted from the store", sum("orphan_blobs_deleted_total")),
        format!(
            "{} events are stored, {} of them after waiting on disk. {} were dropped",
            sum("s3_events_stored_total"),
            sum("dlq_events_reuploaded_total"),
            sum("dlq_events_dropped_total")
        ),
        format!(
            "{} files are stuck, {} deletes are pending, quota counters differ by {} bytes",
            shown["stuckFiles"],
            waiting.len(),
            sum("quota_drift_bytes")
        ),
        format!(
            "{} objects are deleted and will be deleted once more, in case of a late upload",
            deleted.len()
        ),
    ]
}
