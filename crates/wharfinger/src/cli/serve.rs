//! `wharfinger serve`: runs all roles in one process, or the roles of `--role`.

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
/// Open files for databases, stores and files that the program writes.
const FILES_RESERVED: u64 = 512;
/// Files of the local store that are sent or received. One HTTP/2 connection may ask for many.
const TRANSFERS_MAX: usize = 2_000;
const TRANSFERS_MIN: usize = 16;
/// At `WHARFINGER_METRICS_LISTEN`.
const METRICS_CONNECTIONS_MAX: usize = 64;
const FILES_WANTED: u64 =
    (CONNECTIONS_MAX + TRANSFERS_MAX + METRICS_CONNECTIONS_MAX) as u64 + 2 * FILES_RESERVED;
/// Assumed where the limit of open files cannot be read.
const FILES_MIN: u64 = 1_024;

#[derive(Args)]
pub(super) struct Arguments {
    /// The address to listen on (WHARFINGER_LISTEN)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Roles of this process, separated by commas: api, worker, sweeper, ingest [default: all]
    #[arg(long, value_name = "ROLES")]
    role: Vec<String>,
}

/// Calls whose clients disconnected get this long to finish.
const VERBS_TIMEOUT: Duration = Duration::from_secs(30);
const FIRST_TOKEN_MS: i64 = 12 * 3_600_000;

/// What the server prints on standard output when it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    Full,
    /// The demo prints its own text.
    None,
}

pub(super) async fn run(mut flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    let roles = roles(&arguments.role)?;
    flags.overrides.extend(arguments.listen.map(|listen| ("WHARFINGER_LISTEN", listen)));
    serve(Settings::load(&flags)?, roles, Greeting::Full, CancellationToken::new()).await
}

/// Runs all roles until a signal comes or the caller cancels `stop`.
pub(super) async fn run_until(settings: Settings, stop: CancellationToken) -> Result<(), Failure> {
    serve(settings, Roles::all(), Greeting::None, stop).await
}

async fn serve(
    settings: Settings,
    roles: Roles,
    greeting: Greeting,
    asked_to_stop: CancellationToken,
) -> Result<(), Failure> {
    match greeting {
        Greeting::Full => telemetry::log_to_stderr("info", &settings.instance_id),
        Greeting::None => telemetry::log_to_stderr("off", &settings.instance_id),
    }
    telemetry::prometheus();
    let secrets = prepare_secrets(&settings)?;
    let listener = TcpListener::bind(&settings.listen).await.map_err(|error| {
        Failure::Failed(format!("WHARFINGER_LISTEN: cannot listen on {}: {error}", settings.listen))
    })?;
    let address = listener.local_addr().map_err(failed)?;
    let public_url = settings.public_url.clone().unwrap_or_else(|| format!("http://{}", reachable(address)));
    let opened = match roles == Roles::of(ProcessRole::Ingest) {
        true => App::open_for_ingest(settings, &secrets, Clock::system(), public_url).await,
        false => App::open(settings, &secrets, Clock::system(), Faults::none(), public_url).await,
    };
    let not_opened = |error| match error {
        OpenError::Setting(bad) => Failure::from(bad),
        other => failed(other),
    };
    let mut app = opened.map_err(not_opened)?;
    app.roles = roles;
    let open_files = OpenFileLimits::of(files_max());
    app.uploads.transfers.limit(open_files.transfers);
    let app = Arc::new(app);
    if app.roles.has(ProcessRole::Ingest) {
        app.start_ingest().await.map_err(not_opened)?;
    }
    if app.roles.has_any(&[ProcessRole::Api, ProcessRole::Ingest]) {
        app.tokens.refresh(app.core.clock.now()).await;
    }
    app.service_keys.refresh().await;
    let supervisor = Supervisor::start(&app).await;

    // Before the first line is printed: a signal that comes at once must also stop the server in order.
    let mut signals = Signals::listen().map_err(failed)?;
    let stop = CancellationToken::new();
    let limits = connection_limits(&app.core.settings, open_files);
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

    let signal = tokio::select! {
        signal = signals.next() => signal,
        () = asked_to_stop.cancelled() => StopSignal::Interrupt,
    };
    app.core.draining.cancel();
    // A second signal ends the waits for calls and loops below.
    let second_signal = CancellationToken::new();
    tokio::spawn({
        let second_signal = second_signal.clone();
        async move {
            signals.next().await;
            second_signal.cancel();
        }
    });
    if signal == StopSignal::Terminate && app.core.settings.shutdown_drain_ms > 0 {
        let drain = Duration::from_millis(app.core.settings.shutdown_drain_ms);
        tracing::info!(
            durationMs = app.core.settings.shutdown_drain_ms,
            "draining: still serving, /readyz answers 503"
        );
        second_signal.run_until_cancelled(tokio::time::sleep(drain)).await;
    }
    tracing::info!("stopping: open requests and jobs are finished first");
    stop.cancel();
    second_signal.run_until_cancelled(server).await;
    app.core.verbs.close();
    let verbs =
        second_signal.run_until_cancelled(tokio::time::timeout(VERBS_TIMEOUT, app.core.verbs.wait())).await;
    if !matches!(verbs, Some(Ok(()))) {
        tracing::warn!("some calls did not finish in time");
    }
    supervisor.stop_or_abort(second_signal.cancelled()).await;
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

/// Raises the soft limit of open files as far as the hard limit allows, and returns it.
fn files_max() -> u64 {
    rlimit::increase_nofile_limit(FILES_WANTED).unwrap_or_else(|error| {
        tracing::warn!(error = %error, "cannot raise the limit of open files");
        rlimit::Resource::NOFILE.get().map_or(FILES_MIN, |(soft, _)| soft)
    })
}

/// How the open files are divided, beside `FILES_RESERVED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenFileLimits {
    files_max: u64,
    connections: usize,
    transfers: usize,
}

impl OpenFileLimits {
    fn of(files_max: u64) -> OpenFileLimits {
        let left = files_max.saturating_sub(FILES_RESERVED + METRICS_CONNECTIONS_MAX as u64);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let transfers = (left / 6).clamp(TRANSFERS_MIN, TRANSFERS_MAX);
        let connections = left.saturating_sub(transfers).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX);
        OpenFileLimits { files_max, connections, transfers }
    }
}

fn connection_limits(settings: &Settings, open_files: OpenFileLimits) -> ConnectionLimits {
    if open_files.connections < CONNECTIONS_MAX {
        tracing::warn!(
            connections = open_files.connections,
            transfers = open_files.transfers,
            files = open_files.files_max,
            "the limit of open files (ulimit -n) allows fewer connections than usual"
        );
    }
    ConnectionLimits {
        connections_max: open_files.connections,
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
enum StopSignal {
    /// The server drains (`SHUTDOWN_DRAIN_MS`) before it stops.
    Terminate,
    /// Ctrl-C at a terminal: no load balancer, so no drain.
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

    async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = self.interrupt.recv() => StopSignal::Interrupt,
        }
    }
}

/// Clients cannot connect to `0.0.0.0`.
fn reachable(address: std::net::SocketAddr) -> std::net::SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// Prints the address, a token, and commands that can be pasted (test `the_greeting_can_be_pasted_and_works`).
fn greet(app: &App, first_start: bool) {
    let url = &app.core.public_url;
    let catalog = match app.core.catalog.dialect() {
        Dialect::Sqlite => "SQLite",
        Dialect::Postgres => "PostgreSQL",
    };
    line(format!("Wharfinger {} listening on {url}", env!("CARGO_PKG_VERSION")));
    line("");
    if app.roles != Roles::all() {
        line(format!("  Roles       {}", app.roles));
    }
    if app.roles.has(ProcessRole::Api) {
        line(format!("  Dashboard   {url}/"));
        line(format!("  API docs    {url}/docs/"));
    }
    match app.core.settings.blobs.folder() {
        Some(_) => {
            line(format!("  Data        {} ({catalog}, local disk)", app.core.settings.data_dir.display()));
        }
        None => {
            line(format!("  Database    {catalog}"));
            line(format!("  Store       {}", app.core.settings.blobs));
        }
    }
    if !app.roles.has(ProcessRole::Api) || !(first_start || std::io::stdout().is_terminal()) {
        return;
    }
    let Ok(caller) = token::caller("default", "local", "operator") else { return };
    let Ok(token) = app.tokens.mint(&caller, app.core.clock.now() + FIRST_TOKEN_MS) else { return };
    line("  Token       tenant `default`, user `local`, role `operator`, 12 hours");
    line("");
    if std::io::stdout().is_terminal() {
        line("Open this in a browser. The address contains the token, so keep it secret like a password:");
        line("");
        line(format!("  {url}/#token={token}"));
        line("");
        line("For a terminal:");
        line("");
        line(format!("export WHARFINGER_TOKEN={token}"));
    } else {
        // This output may end in a log that others read, so it never has the token itself.
        line("Get the token with this command:");
        line("");
        line(format!("export WHARFINGER_TOKEN=$({})", token::command(&app.core.settings)));
    }
    line("");
    line("To upload a file, paste the line above into another terminal, then:");
    line("");
    if app.core.disk.is_none() {
        line("  wharfinger put hello.txt");
        line("");
        return;
    }
    line("  echo 'hello, world' > hello.txt");
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
    fn connections_and_transfers_stay_below_the_limit_of_open_files() {
        for files_max in [1_024, 2_048, 4_096, FILES_WANTED, 1 << 20] {
            let OpenFileLimits { connections, transfers, .. } = OpenFileLimits::of(files_max);
            let all = (connections + transfers + METRICS_CONNECTIONS_MAX) as u64 + FILES_RESERVED;
            assert!(all <= files_max, "{all} of {files_max}");
        }
        let most = OpenFileLimits::of(FILES_WANTED);
        assert_eq!((most.connections, most.transfers), (CONNECTIONS_MAX, TRANSFERS_MAX));
        let least = OpenFileLimits::of(256);
        assert_eq!((least.connections, least.transfers), (CONNECTIONS_MIN, TRANSFERS_MIN));
    }
}
