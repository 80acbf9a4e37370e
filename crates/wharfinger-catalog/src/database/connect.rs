//! Connections to PostgreSQL: waiting for a server that is not there yet, saying what is wrong with one that is, and
//! keeping only connections that can be written to.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::time::{Instant, sleep, timeout};

use crate::error::CatalogError;

/// How long a start waits for a server that may be starting too.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(15);
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// Also how long a call waits for a server that is away before it answers so.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// As the server counts them: 13.0.
const OLDEST_SERVER: u32 = 130_000;

/// After a connection broke, how long a call looks for another before it gives up.
const ELSEWHERE_FOR: Duration = Duration::from_secs(2);
const ELSEWHERE_PAUSE: Duration = Duration::from_millis(25);

/// The tries of one call whose connection broke: few, and soon over.
pub(crate) struct Elsewhere {
    until: Instant,
    pause: Duration,
}

impl Elsewhere {
    pub(crate) fn begin() -> Elsewhere {
        Elsewhere { until: Instant::now() + ELSEWHERE_FOR, pause: ELSEWHERE_PAUSE }
    }

    /// Waits a moment; false if it is time to give up.
    pub(crate) async fn again(&mut self) -> bool {
        if Instant::now() + self.pause > self.until {
            return false;
        }
        sleep(self.pause).await;
        self.pause *= 2;
        true
    }
}

/// Whether a call failed because of its connection, not of what was asked: it broke, its server is going down or
/// coming up, or takes no writes any more because another has become the primary.
pub(crate) fn is_disconnected(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            matches!(&*code, "57P01" | "57P02" | "57P03" | "25006") || code.starts_with("08")
        }),
        // A proxy with nobody behind it takes the connection and ends it: the driver takes the end for a zero, and says
        // so in these words (sqlx 0.9). A test would notice other ones.
        sqlx::Error::Protocol(problem) => problem.contains("SSLRequest: 0x00"),
        _ => false,
    }
}

/// Answers a pool of a server that can be used, or what has to be done for it to become one.
pub(crate) async fn open(
    url: &str,
    schema: &str,
    connections_max: u32,
    patience: Duration,
) -> Result<Pools, CatalogError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| CatalogError::Unusable(format!("the URL cannot be read: {error}")))?
        .application_name("wharfinger")
        .options([
            ("statement_timeout", "30s"),
            ("lock_timeout", "20s"),
            ("idle_in_transaction_session_timeout", "60s"),
            // Exactly ours: a table of another application is never taken for one of our own.
            ("search_path", &format!("\"{schema}\"")),
        ])
        .statement_cache_capacity(256)
        .log_statements(tracing::log::LevelFilter::Off);
    reach(&options, patience).await?;
    let pool = |connections: u32| pool_of(options.clone(), connections);
    Ok(Pools { work: pool(connections_max.max(2)), health: pool(1) })
}

/// Connections for work, and one for health checks, which do not wait behind the work.
pub(crate) struct Pools {
    pub(crate) work: PgPool,
    pub(crate) health: PgPool,
}

fn pool_of(options: PgConnectOptions, connections_max: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // One question instead of a ping: it costs the same way there and back, and tells more.
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(takes_writes(connection)))
        .after_connect(|connection, _| {
            Box::pin(async move {
                match takes_writes(connection).await? {
                    true => Ok(()),
                    false => Err(sqlx::Error::Protocol("the server takes no writes".into())),
                }
            })
        })
        .connect_lazy_with(options)
}

/// A server that was demoted keeps its connections and answers reads from its past.
async fn takes_writes(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT current_setting('transaction_read_only') = 'off'").fetch_one(connection).await
}

/// Why a server cannot be used.
enum Trouble {
    /// It may be over soon.
    Passing(String),
    Lasting(String),
}

async fn reach(options: &PgConnectOptions, patience: Duration) -> Result<(), CatalogError> {
    let place = shown(options);
    let give_up = Instant::now() + patience;
    let mut has_warned = false;
    loop {
        let late = || Err(Trouble::Passing("it does not answer".into()));
        let problem = match timeout(TRY_TIMEOUT, try_out(options)).await.unwrap_or_else(|_| late()) {
            Ok(()) => return Ok(()),
            Err(Trouble::Lasting(problem)) => problem,
            Err(Trouble::Passing(problem)) if Instant::now() >= give_up => {
                format!("{problem}; start the server, or correct its address")
            }
            Err(Trouble::Passing(problem)) => {
                if !has_warned {
                    tracing::warn!(database = %place, error = %problem, "the database cannot be used yet");
                    has_warned = true;
                }
                sleep(TRY_AGAIN_AFTER).await;
                continue;
            }
        };
        return Err(CatalogError::Unusable(format!("{place}: {problem}")));
    }
}

async fn try_out(options: &PgConnectOptions) -> Result<(), Trouble> {
    let mut connection =
        PgConnection::connect_with(options).await.map_err(|error| explain(options, error))?;
    if let Some(version) = connection.server_version_num().filter(|version| *version < OLDEST_SERVER) {
        let problem = format!("PostgreSQL {} is too old; 13 or newer is needed", version / 10_000);
        return Err(Trouble::Lasting(problem));
    }
    let writable = takes_writes(&mut connection).await.map_err(|error| explain(options, error))?;
    let _ = connection.close().await;
    match writable {
        true => Ok(()),
        false => Err(Trouble::Passing("it takes no writes: a standby, perhaps".into())),
    }
}

fn explain(options: &PgConnectOptions, error: sqlx::Error) -> Trouble {
    if is_disconnected(&error) {
        return Trouble::Passing(match error {
            sqlx::Error::Io(error) => error.to_string(),
            sqlx::Error::Protocol(_) => "it hung up at once: a proxy, perhaps, with nobody behind it".into(),
            other => words(&other),
        });
    }
    let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
    let problem = words(&error);
    Trouble::Lasting(match code.as_str() {
        "28P01" | "28000" => {
            format!("{problem}; correct user and password in the URL, or let the user in by pg_hba.conf")
        }
        "3D000" => {
            let name = options.get_database().unwrap_or(options.get_username());
            format!("{problem}; create it (`createdb {name}`), or correct its name in the URL")
        }
        // Too many connections: others may end.
        "53300" => return Trouble::Passing(problem),
        _ => problem,
    })
}

/// In the server's own words, in one line.
fn words(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        other => other.to_string().replace('\n', " "),
    }
}

/// Without the password.
fn shown(options: &PgConnectOptions) -> String {
    let (user, host, port) = (options.get_username(), options.get_host(), options.get_port());
    format!("postgres://{user}@{host}:{port}/{}", options.get_database().unwrap_or(user))
}
