//! `wharfinger demo`: a server with short windows, and two minutes of traffic and faults against it.

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
use crate::demo::{self, Client, Crew, Speed, Wharf};

#[derive(Args)]
pub(super) struct Arguments {
    /// The address to listen on (WHARFINGER_LISTEN)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// How many times faster than usual, 1 to 5: at 1 the traffic lasts two minutes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    speed: u32,
    /// End with the traffic, instead of serving on until Ctrl-C
    #[arg(long)]
    and_stop: bool,
}

const TOKENS_MS: i64 = 12 * 3_600_000;
/// How long the server may take to be there.
const START_TRIES: u32 = 300;
const START_PAUSE: Duration = Duration::from_millis(100);
/// How often its folder is taken away until it is gone.
const END_TRIES: u32 = 50;
const END_PAUSE: Duration = Duration::from_millis(100);
/// What was broken last heals by then.
const AFTERMATH_TURNS: u32 = 30;

pub(super) async fn run(flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    if flags.config.is_some() || flags.overrides.iter().any(|(name, _)| *name != "WHARFINGER_DATA_DIR") {
        return Err(Failure::Usage(
            "the demo has settings and data of its own: only --data-dir and --listen can be given".into(),
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
    // It breaks things on purpose, and must not find anybody else's.
    let settings = Settings::from_values(&Values::read_alone(&overrides)?)?;
    if settings.listen.ends_with(":0") {
        return Err(Failure::Usage("--listen: the demo needs a port that is known".into()));
    }
    let wharf = Wharf { url: format!("http://{}", settings.listen), blobs, events };
    let stop = CancellationToken::new();
    let serving = serve::run_until(settings.clone(), stop.clone());
    let playing = play(&settings, wharf, speed, stop, arguments.and_stop);
    // Whoever ends first: a server that could not start, or one that was told to stop.
    tokio::select! {
        served = serving => served,
        played = playing => played,
    }
}

/// The demo's own data, gone when it ends; or where somebody asks for it.
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
                format!("--data-dir: {} is not empty, and the demo breaks what lies there", path.display());
            return Err(Failure::Usage(problem));
        }
        Ok(Folder { path: path.canonicalize().map_err(failed)?, is_ours: false })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A write that was under way when the server ended may still put something there.
        for _ in 0..END_TRIES {
            if !self.is_ours || std::fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::sleep(END_PAUSE);
        }
    }
}

async fn play(
    settings: &Settings,
    wharf: Wharf,
    speed: Speed,
    stop: CancellationToken,
    and_stop: bool,
) -> Result<(), Failure> {
    let nobody = Client::new(&wharf.url, String::new());
    for _ in 0..START_TRIES {
        if nobody.is_ready().await {
            break;
        }
        tokio::time::sleep(START_PAUSE).await;
    }
    let mint = |tenant, user, role| {
        let caller = token::caller(tenant, user, role)?;
        token::mint(settings, &caller, Clock::system().now() + TOKENS_MS)
    };
    let as_whom = |tenant, user, role| Ok::<_, Failure>(Client::new(&wharf.url, mint(tenant, user, role)?));
    let crew = Crew {
        users: vec![
            as_whom("acme", "ada", "user")?,
            as_whom("globex", "grace", "user")?,
            as_whom("initech", "ivan", "user")?,
        ],
        local: as_whom("default", "local", "user")?,
        operator: as_whom("ops", "demo", "operator")?,
        worker: as_whom("ops", "worker", "worker")?,
    };
    line("A wharf on a bad day: two minutes of traffic, and everything that goes wrong. Watch it here:");
    line("");
    match std::io::stdout().is_terminal() {
        true => line(format!("  {}/#token={}", wharf.url, mint("default", "local", "operator")?)),
        // What is printed here may end in a log, where others read it.
        false => line(format!("  {}/ with a token from: {}", wharf.url, token::command(settings))),
    }
    line("");
    let say = |second: u64, said: &str| line(format!("{:02}:{:02}  {said}", second / 60, second % 60));
    demo::run(&wharf, &crew, speed, &say).await;
    line("02:00  that was the traffic; what is still broken heals now");
    tokio::time::sleep(speed.turn() * AFTERMATH_TURNS).await;
    for said in summary(&crew.operator).await {
        line(format!("       {said}"));
    }
    if and_stop {
        stop.cancel();
    } else {
        line("Ctrl-C ends it.");
    }
    // The server ends in order, and this with it.
    std::future::pending().await
}

/// What the server says it has done, in words.
async fn summary(operator: &Client) -> Vec<String> {
    let metrics = operator.metrics().await;
    let sum = |name: &str| -> f64 {
        let is_of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        metrics.lines().filter(is_of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let shown = operator.get("/api/v2/uploads/dashboard").await.unwrap_or_default();
    let pending = operator.get("/api/v1/maintenance/cleanup/pending?limit=1000").await.unwrap_or_default();
    let cleanups = pending["cleanups"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (gone, waiting): (Vec<_>, Vec<_>) = cleanups
        .iter()
        .partition(|cleanup| cleanup["lastAttemptAt"].is_string() && cleanup["lastError"].is_null());
    vec![
        format!("{} files are ready", shown["statusDistribution"]["ready"]),
        format!(
            "{} uploads that nobody confirmed were reclaimed",
            sum("resource_orphaned_files_cleaned_total")
        ),
        format!("{} orphans were deleted from the store", sum("orphan_blobs_deleted_total")),
        format!(
            "{} events are stored, {} of them after they had waited on disk; {} were dropped",
            sum("s3_events_stored_total"),
            sum("dlq_events_reuploaded_total"),
            sum("dlq_events_dropped_total")
        ),
        format!(
            "{} files are stuck, {} deletes wait, and the counters of quotas are {} bytes off",
            shown["stuckFiles"],
            waiting.len(),
            sum("quota_drift_bytes")
        ),
        format!(
            "{} objects are gone and will be deleted once more, in case they were written meanwhile",
            gone.len()
        ),
    ]
}
