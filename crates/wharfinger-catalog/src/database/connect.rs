//! Connections to PostgreSQL. A start waits for a server that is not ready yet and explains why a server cannot be
//! used. The pool discards connections that cannot write.

use std::str::FromStr;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::time::{Instant, sleep, timeout};

use crate::error::CatalogError;

/// How long a start waits for a server that may still be starting.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(15);
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// A call that gets no connection fails after this time.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// PostgreSQL 13.0, as `server_version_num`.
const SERVER_VERSION_MIN: u32 = 130_000;

/// After its connection broke, a call tries others for this long.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RECONNECT_PAUSE: Duration = Duration::from_millis(25);

/// Limits the retries of one call whose connection broke.
pub(crate) struct ReconnectTimer {
    until: Instant,
    pause: Duration,
}

impl ReconnectTimer {
    pub(crate) fn start() -> ReconnectTimer {
        ReconnectTimer { until: Instant::now() + RECONNECT_TIMEOUT, pause: RECONNECT_PAUSE }
    }

    /// Waits before the next try. False: no time is left.
    pub(crate) async fn wait_before_retry(&mut self) -> bool {
        if Instant::now() + self.pause > self.until {
            return false;
        }
        sleep(self.pause).await;
        self.pause *= 2;
        true
    }
}

/// Whether a call failed because of its connection: it broke, the server is stopping or starting, or the server became
/// read-only because another one is the primary now.
pub(crate) fn is_disconnected(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            matches!(&*code, "57P01" | "57P02" | "57P03" | "25006") || code.starts_with("08")
        }),
        // A proxy without a server accepts the connection and closes it. The driver (sqlx 0.9) reads a zero and reports
        // it with this text. `a_database_that_starts_late_is_used` fails if the text changes.
        sqlx::Error::Protocol(problem) => problem.contains("SSLRequest: 0x00"),
        _ => false,
    }
}

/// Opens the pools of a usable server. The error says why a server is unusable.
pub(crate) async fn open(
    url: &str,
    schema: &str,
    connections_max: u32,
    max_wait: Duration,
) -> Result<Pools, CatalogError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| CatalogError::Unusable(format!("the URL is not valid: {error}")))?
        .application_name("wharfinger")
        .options([
            ("statement_timeout", "30s"),
            ("lock_timeout", "20s"),
            ("idle_in_transaction_session_timeout", "60s"),
            // Only our schema: a table of another application must not be found under the name of ours.
            ("search_path", &format!("\"{schema}\"")),
        ])
        .statement_cache_capacity(256)
        .log_statements(tracing::log::LevelFilter::Off);
    wait_for_server(&options, max_wait).await?;
    let pool = |connections: u32| new_pool(options.clone(), connections);
    Ok(Pools { work: pool(connections_max.max(2)), health: pool(1) })
}

/// Connections for work, and one for health checks, so that these do not wait behind the work.
pub(crate) struct Pools {
    pub(crate) work: PgPool,
    pub(crate) health: PgPool,
}

/// A pool without the maintenance task of sqlx 0.9. The task counts idle connections, and a race lets that count wrap below
/// zero. Then the task loops for ever: it uses a whole core, and the process does not end. Without limits on the age of
/// connections the task does not run.
pub(crate) fn without_maintenance<DB: sqlx::Database>(options: PoolOptions<DB>) -> PoolOptions<DB> {
    options.idle_timeout(None).max_lifetime(None)
}

fn new_pool(options: PgConnectOptions, connections_max: u32) -> PgPool {
    without_maintenance(PgPoolOptions::new())
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // This query replaces the ping of the pool. It costs one round trip, too, and also finds a read-only server.
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(is_writable(connection)))
        .after_connect(|connection, _| {
            Box::pin(async move {
                match is_writable(connection).await? {
                    true => Ok(()),
                    false => Err(sqlx::Error::Protocol("the server is read-only".into())),
                }
            })
        })
        .connect_lazy_with(options)
}

/// A demoted primary keeps its connections and answers reads with old data.
async fn is_writable(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT current_setting('transaction_read_only') = 'off'").fetch_one(connection).await
}

/// Why a server cannot be used.
enum ConnectError {
    Temporary(String),
    Permanent(String),
}

async fn wait_for_server(options: &PgConnectOptions, max_wait: Duration) -> Result<(), CatalogError> {
    let address = address_of(options);
    let give_up = Instant::now() + max_wait;
    let mut has_warned = false;
    loop {
        let no_answer = || Err(ConnectError::Temporary("no answer".into()));
        let problem = match timeout(TRY_TIMEOUT, try_connect(options)).await.unwrap_or_else(|_| no_answer()) {
            Ok(()) => return Ok(()),
            Err(ConnectError::Permanent(problem)) => problem,
            Err(ConnectError::Temporary(problem)) if Instant::now() >= give_up => {
                format!("{problem}. Start the server, or correct the address.")
            }
            Err(ConnectError::Temporary(problem)) => {
                if !has_warned {
                    tracing::warn!(database = %address, error = %problem, "the database cannot be used yet");
                    has_warned = true;
                }
                sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        return Err(CatalogError::Unusable(format!("{address}: {problem}")));
    }
}

async fn try_connect(options: &PgConnectOptions) -> Result<(), ConnectError> {
    let mut connection =
        PgConnection::connect_with(options).await.map_err(|error| explain(options, error))?;
    if let Some(version) = connection.server_version_num().filter(|version| *version < SERVER_VERSION_MIN) {
        let problem = format!("PostgreSQL {} is too old; 13 or newer is needed", version / 10_000);
        return Err(ConnectError::Permanent(problem));
    }
    let writable = is_writable(&mut connection).await.map_err(|error| explain(options, error))?;
    let _ = connection.close().await;
    match writable {
        true => Ok(()),
        false => Err(ConnectError::Temporary("the server is read-only. Is it a standby?".into())),
    }
}

fn explain(options: &PgConnectOptions, error: sqlx::Error) -> ConnectError {
    if is_disconnected(&error) {
        return ConnectError::Temporary(match error {
            sqlx::Error::Io(error) => error.to_string(),
            sqlx::Error::Protocol(_) => {
                "the connection was closed at once. Is it a proxy without its server?".into()
            }
            other => error_text(&other),
        });
    }
    let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
    let problem = error_text(&error);
    ConnectError::Permanent(match code.as_str() {
        "28P01" | "28000" => {
            format!("{problem}. Correct the user and password in the URL, or allow the user in pg_hba.conf.")
        }
        "3D000" => {
            let name = options.get_database().unwrap_or(options.get_username());
            format!("{problem}. Create it (`createdb {name}`), or correct its name in the URL.")
        }
        // Too many connections: some may end soon.
        "53300" => return ConnectError::Temporary(problem),
        _ => problem,
    })
}

/// The server's own text, in one line.
fn error_text(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        other => other.to_string().replace('\n', " "),
    }
}

/// The URL without the password.
fn address_of(options: &PgConnectOptions) -> String {
    let (user, host, port) = (options.get_username(), options.get_host(), options.get_port());
    format!("postgres://{user}@{host}:{port}/{}", options.get_database().unwrap_or(user))
}
