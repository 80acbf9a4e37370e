//! `wharfinger serve`: everything in one process, or the roles it is given.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::Dialect;

use super::output::line;
use super::{Failure, failed, token};
use crate::app::App;
use crate::clock::Clock;
use crate::config::{Flags, Settings, prepare_secrets};
use crate::core::OpenError;
use crate::http::ConnectionLimits;
use crate::roles::{ProcessRole, Roles};
use crate::worker::Supervisor;
use crate::{http, telemetry};

const CONNECTIONS_MAX: usize = 10_000;
const CONNECTIONS_MIN: usize = 64;
/// Databases, stores, files that are written.
const FILES_OF_OUR_OWN: u64 = 512;
/// Files of the local store that are sent or received: one connection of HTTP/2 may ask for many.
const TRANSFERS_MAX: usize = 2_000;
const TRANSFERS_MIN: usize = 16;
/// At the address for metrics alone.
const METRICS_CONNECTIONS_MAX: usize = 64;
const FILES_WANTED: u64 =
    (CONNECTIONS_MAX + TRANSFERS_MAX + METRICS_CONNECTIONS_MAX) as u64 + 2 * FILES_OF_OUR_OWN;
/// What every system gives a process.
const FILES_MIN: u64 = 1_024;

#[derive(Args)]
pub(super) struct Arguments {
    /// The address to listen on (WHARFINGER_LISTEN)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// What this process does of api, worker, sweeper, ingest, separated by commas (default: all)
    #[arg(long, value_name = "ROLES")]
    role: Vec<String>,
}

/// Verbs whose clients are gone get this long to come to their end.
const VERBS_TIMEOUT: Duration = Duration::from_secs(30);
const FIRST_TOKEN_MS: i64 = 12 * 3_600_000;

/// What is said on standard output once it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    Full,
    /// Somebody else speaks.
    None,
}

pub(super) async fn run(mut flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    let roles = roles(&arguments.role)?;
    flags.overrides.extend(arguments.listen.map(|listen| ("WHARFINGER_LISTEN", listen)));
    serve(Settings::load(&flags)?, roles, Greeting::Full, CancellationToken::new()).await
}

/// Everything in one process, until it is told to stop by a signal or by its caller.
pub(super) async fn run_until(settings: Settings, told: CancellationToken) -> Result<(), Failure> {
    serve(settings, Roles::all(), Greeting::None, told).await
}

async fn serve(
    settings: Settings,
    roles: Roles,
    greeting: Greeting,
    told: CancellationToken,
) -> Result<(), Failure> {
    match greeting {
        Greeting::Full => telemetry::log_to_stderr("info"),
        Greeting::None => telemetry::log_to_stderr("off"),
    }
    telemetry::prometheus();
    let secrets = prepare_secrets(&settings)?;
    let listener = TcpListener::bind(&settings.listen).await.map_err(|error| {
        Failure::Failed(format!("WHARFINGER_LISTEN: {} cannot be listened on: {error}", settings.listen))
    })?;
    let address = listener.local_addr().map_err(failed)?;
    let public_url = settings.public_url.clone().unwrap_or_else(|| format!("http://{}", reachable(address)));
    let opened = match roles == Roles::of(ProcessRole::Ingest) {
        true => App::open_to_take_events(settings, &secrets, Clock::system(), public_url).await,
        false => App::open(settings, &secrets, Clock::system(), Faults::none(), public_url).await,
    };
    let not_opened = |error| match error {
        OpenError::Setting(bad) => Failure::from(bad),
        other => failed(other),
    };
    let mut app = opened.map_err(not_opened)?;
    app.roles = roles;
    let shares = Shares::of(files_max());
    app.uploads.transfers.limit(shares.transfers);
    let app = Arc::new(app);
    if app.roles.has(ProcessRole::Ingest) {
        app.start_ingest().await.map_err(not_opened)?;
    }
    if app.roles.has_any(&[ProcessRole::Api, ProcessRole::Ingest]) {
        app.tokens.refresh(app.core.clock.now()).await;
    }
    let supervisor = Supervisor::start(&app).await;

    // Before anybody knows that we are there: who is told to stop at once stops in order too.
    let mut signals = Signals::listen().map_err(failed)?;
    let stop = CancellationToken::new();
    let limits = connection_limits(&app.core.settings, shares);
    if let Some(address) = &app.core.settings.metrics_listen {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::Failed(format!("WHARFINGER_METRICS_LISTEN: cannot listen on {address}: {error}"))
        })?;
        let router = http::metrics_router(app.clone());
        let limits = ConnectionLimits { connections_max: METRICS_CONNECTIONS_MAX, ..limits.clone() };
        tokio::spawn(http::serve(listener, router, limits, stop.clone()));
    }
    let server = tokio::spawn(http::serve(listener, http::router(app.clone()), limits, stop.clone()));
    if greeting == Greeting::Full {
        greet(&app, secrets.first_start);
    }
    tracing::info!(instance = %app.core.settings.instance_id, address = %address, roles = %app.roles, "serving");

    let told = tokio::select! {
        told = signals.next() => told,
        () = told.cancelled() => Told::Interrupt,
    };
    app.core.draining.cancel();
    // Whoever says it twice does not want to wait.
    let hurry = CancellationToken::new();
    tokio::spawn({
        let hurry = hurry.clone();
        async move {
            signals.next().await;
            hurry.cancel();
        }
    });
    if told == Told::Terminate && app.core.settings.shutdown_drain_ms > 0 {
        let drain = Duration::from_millis(app.core.settings.shutdown_drain_ms);
        tracing::info!(
            durationMs = app.core.settings.shutdown_drain_ms,
            "draining: serving on, not ready any more"
        );
        hurry.run_until_cancelled(tokio::time::sleep(drain)).await;
    }
    tracing::info!("stopping: what is under way comes to its end");
    stop.cancel();
    hurry.run_until_cancelled(server).await;
    app.core.verbs.close();
    let verbs = hurry.run_until_cancelled(tokio::time::timeout(VERBS_TIMEOUT, app.core.verbs.wait())).await;
    if !matches!(verbs, Some(Ok(()))) {
        tracing::warn!("some verbs did not come to their end in time");
    }
    supervisor.stop_or_cut(hurry.cancelled()).await;
    if let Some(broker) = &app.broker {
        broker.rabbit.close().await;
    }
    let traces = app.clone();
    let _ = tokio::task::spawn_blocking(move || traces.core.traces.close()).await;
    if let Ok(app) = Arc::try_unwrap(app) {
        app.core.catalog.clone().close().await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Raised as far as it may be.
fn files_max() -> u64 {
    rlimit::increase_nofile_limit(FILES_WANTED).unwrap_or_else(|error| {
        tracing::warn!(error = %error, "cannot raise the limit of open files");
        rlimit::Resource::NOFILE.get().map_or(FILES_MIN, |(soft, _)| soft)
    })
}

/// What the open files are for, beside those that the program itself needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    files_max: u64,
    connections: usize,
    transfers: usize,
}

impl Shares {
    fn of(files_max: u64) -> Shares {
        let left = files_max.saturating_sub(FILES_OF_OUR_OWN + METRICS_CONNECTIONS_MAX as u64);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let transfers = (left / 6).clamp(TRANSFERS_MIN, TRANSFERS_MAX);
        let connections = left.saturating_sub(transfers).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX);
        Shares { files_max, connections, transfers }
    }
}

fn connection_limits(settings: &Settings, shares: Shares) -> ConnectionLimits {
    if shares.connections < CONNECTIONS_MAX {
        tracing::warn!(
            connections = shares.connections,
            transfers = shares.transfers,
            files = shares.files_max,
            "the limit of open files (ulimit -n) allows fewer connections than usual"
        );
    }
    ConnectionLimits {
        connections_max: shares.connections,
        per_address_max: settings.connections_per_address,
        trusted_proxies: settings.trusted_proxies.clone(),
    }
}

fn roles(lists: &[String]) -> Result<Roles, Failure> {
    if lists.is_empty() {
        return Ok(Roles::all());
    }
    Roles::parse(&lists.join(",")).map_err(|problem| Failure::Usage(format!("--role: {problem}")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Terminate,
    /// By a person at a terminal, who has no load balancer to wait for.
    Interrupt,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Terminate,
            _ = self.interrupt.recv() => Told::Interrupt,
        }
    }
}

/// `0.0.0.0` is where we listen, not where anybody finds us.
fn reachable(address: std::net::SocketAddr) -> std::net::SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// What a newcomer needs: an address, a token, and commands that work as they stand.
fn greet(app: &App, first_start: bool) {
    let url = &app.core.public_url;
    let catalog = match app.core.catalog.dialect() {
        Dialect::Sqlite => "SQLite",
        Dialect::Postgres => "PostgreSQL",
    };
    line(format!("Wharfinger {} keeps the wharf at {url}", env!("CARGO_PKG_VERSION")));
    line("");
    if app.roles != Roles::all() {
        line(format!("  Roles       {}", app.roles));
    }
    if app.roles.has(ProcessRole::Api) {
        line(format!("  Dashboard   {url}/"));
        line(format!("  API pages   {url}/docs/"));
    }
    match app.core.settings.blobs.folder() {
        Some(_) => {
            line(format!("  Data        {} ({catalog}, local disk)", app.core.settings.data_dir.display()));
        }
        None => {
            line(format!("  Catalog     {catalog}"));
            line(format!("  Store       {}", app.core.settings.blobs));
        }
    }
    if !app.roles.has(ProcessRole::Api) || !(first_start || std::io::stdout().is_terminal()) {
        return;
    }
    let Ok(caller) = token::caller("default", "local", "operator") else { return };
    let Some(token) = app.tokens.mint(&caller, app.core.clock.now() + FIRST_TOKEN_MS) else { return };
    line("  Token       tenant `default`, user `local`, role `operator`, 12 hours");
    line("");
    if std::io::stdout().is_terminal() {
        line("Look at it in a browser (the address signs you in; it is as good as a password):");
        line("");
        line(format!("  {url}/#token={token}"));
        line("");
        line("Or in a terminal:");
        line("");
        line(format!("export WHARFINGER_TOKEN={token}"));
    } else {
        // What is printed here may end in a log, where others read it.
        line("Get it with this command, for the page or a terminal:");
        line("");
        line(format!("export WHARFINGER_TOKEN=$({})", token::command(&app.core.settings)));
    }
    line("");
    line("Upload a file, in another terminal (paste the line above first):");
    line("");
    if app.core.disk.is_none() {
        line("  wharfinger put hello.txt");
        line("");
        return;
    }
    line("  echo 'hello, wharf' > hello.txt");
    line(format!(
        "  INIT=$(curl -fsS {url}/api/v2/files/init -H \"Authorization: Bearer $WHARFINGER_TOKEN\" \\"
    ));
    line("    -d '{\"fileName\":\"hello.txt\",\"size\":13}')");
    line("  ID=$(echo \"$INIT\" | sed 's/.*\"fileId\":\"\\([^\"]*\\)\".*/\\1/')");
    line("  curl -fsS -T hello.txt \"$(echo \"$INIT\" | sed 's/.*\"uploadUrl\":\"\\([^\"]*\\)\".*/\\1/')\"");
    line(format!(
        "  curl -fsS -X POST {url}/api/v2/files/$ID/confirm -H \"Authorization: Bearer $WHARFINGER_TOKEN\""
    ));
    line(format!(
        "  until curl -fsS {url}/api/v2/files/$ID -H \"Authorization: Bearer $WHARFINGER_TOKEN\" \\"
    ));
    line("    | grep '\"status\":\"ready\"'; do sleep 0.2; done");
    line(format!(
        "  curl -fsSL {url}/api/v2/files/$ID/download -H \"Authorization: Bearer $WHARFINGER_TOKEN\""
    ));
    line("");
    line("or: wharfinger put hello.txt");
    line("");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_transfers_have_no_more_files_than_there_are() {
        for files_max in [1_024, 2_048, 4_096, FILES_WANTED, 1 << 20] {
            let Shares { connections, transfers, .. } = Shares::of(files_max);
            let all = (connections + transfers + METRICS_CONNECTIONS_MAX) as u64 + FILES_OF_OUR_OWN;
            assert!(all <= files_max, "{all} of {files_max}");
        }
        let most = Shares::of(FILES_WANTED);
        assert_eq!((most.connections, most.transfers), (CONNECTIONS_MAX, TRANSFERS_MAX));
        let least = Shares::of(256);
        assert_eq!((least.connections, least.transfers), (CONNECTIONS_MIN, TRANSFERS_MIN));
    }
}
