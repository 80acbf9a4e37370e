//! The connection to Redis, to one server or a cluster. It is opened at the first call and dropped after a failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo as _, RedisError,
    ScriptInvocation, ServerErrorKind,
};
use tokio::sync::Mutex;

use super::QuotaError;

/// The default timeout for an answer. Connecting may take twice as long.
const TIMEOUT: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: u32 = 2;
/// Older versions reject writes in a script after it has called INFO.
const VERSION_MIN: (u32, u32) = (6, 0);

#[derive(Clone)]
enum Link {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

struct Connected {
    link: Link,
    version: String,
    number: u64,
}

impl Connected {
    fn parts(&self) -> (Link, u64, String) {
        (self.link.clone(), self.number, self.version.clone())
    }
}

pub(super) struct Connector {
    client: Client,
    address: String,
    timeout: Duration,
    /// Locked while connecting, so that concurrent callers open one connection and share its error.
    state: Mutex<LinkState>,
    /// The number of finished connection attempts.
    attempts: AtomicU64,
}

#[derive(Default)]
struct LinkState {
    connected: Option<Connected>,
    failed: Option<QuotaError>,
}

impl Connector {
    pub(super) fn new(url: &str) -> Result<Connector, QuotaError> {
        // The message of the library may contain the URL and its password.
        let unusable = |_: RedisError| {
            QuotaError::Refused("the URL is not a Redis URL, such as redis://host:6379".into())
        };
        let info = url.into_connection_info().map_err(unusable)?;
        let address = info.addr().to_string();
        let client = Client::open(info).map_err(unusable)?;
        Ok(Connector {
            client,
            address,
            timeout: TIMEOUT,
            state: Mutex::default(),
            attempts: AtomicU64::new(0),
        })
    }

    pub(super) fn with_timeout(self, timeout: Duration) -> Connector {
        Connector { timeout, ..self }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) async fn version(&self) -> Result<String, QuotaError> {
        self.link().await.map(|(_, _, version)| version)
    }

    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, QuotaError> {
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            attempts_left -= 1;
            let (link, number, _) = self.link().await?;
            let answered = match link {
                Link::One(mut one) => self.bounded(call.invoke_async(&mut one)).await,
                Link::Cluster(mut cluster) => self.bounded(call.invoke_async(&mut cluster)).await,
            };
            if let Err(FailedCall { error: QuotaError::Unavailable(_), is_broken }) = &answered {
                self.drop_link(number).await;
                if *is_broken && attempts_left > 0 {
                    continue;
                }
            }
            return answered.map_err(|failed| failed.error);
        }
    }

    /// Sends a PING.
    pub(super) async fn ping(&self) -> Result<(), QuotaError> {
        let ping = redis::cmd("PING");
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            attempts_left -= 1;
            let (link, number, _) = self.link().await?;
            let answered: Result<String, FailedCall> = match link {
                Link::One(mut one) => self.bounded(ping.query_async(&mut one)).await,
                Link::Cluster(mut cluster) => self.bounded(ping.query_async(&mut cluster)).await,
            };
            match answered {
                Ok(_) => return Ok(()),
                Err(FailedCall { error, is_broken }) => {
                    self.drop_link(number).await;
                    if !is_broken || attempts_left == 0 {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn link(&self) -> Result<(Link, u64, String), QuotaError> {
        let before = self.attempts.load(Ordering::SeqCst);
        let mut state = self.state.lock().await;
        if let Some(connected) = &state.connected {
            return Ok(connected.parts());
        }
        // Another caller tried while this one waited for the lock: its error counts for both.
        let finished = self.attempts.load(Ordering::SeqCst);
        if let (true, Some(failed)) = (finished > before, &state.failed) {
            return Err(failed.clone());
        }
        let outcome = self.connect(finished + 1).await;
        self.attempts.fetch_add(1, Ordering::SeqCst);
        match outcome {
            Ok(connected) => {
                let parts = connected.parts();
                *state = LinkState { connected: Some(connected), failed: None };
                Ok(parts)
            }
            Err(error) => {
                state.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn drop_link(&self, number: u64) {
        let mut state = self.state.lock().await;
        if state.connected.as_ref().is_some_and(|connected| connected.number == number) {
            state.connected = None;
        }
    }

    async fn connect(&self, number: u64) -> Result<Connected, QuotaError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout * 2))
            .set_response_timeout(Some(self.timeout));
        let mut one = self.bounded(self.client.get_multiplexed_async_connection_with_config(&config)).await?;
        let info = self.info(&mut one).await?;
        let version = info.version()?;
        let link = match info.field("redis_mode") {
            Some("cluster") => {
                let builder = ClusterClientBuilder::new([self.client.get_connection_info().clone()])
                    .connection_timeout(self.timeout * 2)
                    .response_timeout(self.timeout)
                    .retries(2);
                let cluster = builder.build().map_err(to_quota_error)?;
                Link::Cluster(self.bounded(cluster.get_async_connection()).await?)
            }
            _ => Link::One(one),
        };
        Ok(Connected { link, version, number })
    }

    async fn info(&self, link: &mut (impl ConnectionLike + Send)) -> Result<ServerInfo, QuotaError> {
        let text = self.bounded(redis::cmd("INFO").arg("server").query_async::<String>(link)).await?;
        Ok(ServerInfo(text))
    }

    /// Limits every wait, even if the timeouts of the library fail.
    async fn bounded<T>(&self, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, FailedCall> {
        match tokio::time::timeout(self.timeout * 3, work).await {
            Ok(outcome) => outcome.map_err(|error| {
                let is_broken = error.is_connection_dropped() && !error.is_timeout();
                FailedCall { error: to_quota_error(error), is_broken }
            }),
            Err(_) => Err(FailedCall {
                error: QuotaError::Unavailable("no answer in time".into()),
                is_broken: false,
            }),
        }
    }
}

/// A failed call. All scripts may be sent again, so a call on a broken connection is repeated: the connection may only
/// have been idle for too long.
struct FailedCall {
    error: QuotaError,
    /// The connection was closed.
    is_broken: bool,
}

impl From<FailedCall> for QuotaError {
    fn from(failed: FailedCall) -> QuotaError {
        failed.error
    }
}

/// The answer to INFO.
struct ServerInfo(String);

impl ServerInfo {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    fn version(&self) -> Result<String, QuotaError> {
        let version = self.field("redis_version").unwrap_or("unknown").to_owned();
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found < VERSION_MIN {
            let (major, minor) = VERSION_MIN;
            return Err(QuotaError::Refused(format!(
                "its version is {version}, at least {major}.{minor} is required"
            )));
        }
        match self.field("run_id") {
            Some(id) if !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit()) => Ok(version),
            _ => Err(QuotaError::Refused("INFO shows no run_id, which is needed to detect a restart".into())),
        }
    }
}

fn to_quota_error(error: RedisError) -> QuotaError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            QuotaError::Refused("it rejects the user or the password of the URL".into())
        }
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            QuotaError::Unavailable("it is a read-only replica".into())
        }
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            QuotaError::Refused(format!("the user of the URL lacks a permission ({text})"))
        }
        _ if text.contains("READONLY") => QuotaError::Unavailable("it is a read-only replica".into()),
        _ if text.contains("OOM") => QuotaError::Unavailable(
            "it is out of memory: raise `maxmemory`, and set `maxmemory-policy noeviction`".into(),
        ),
        _ if text.contains("NOAUTH") || text.contains("WRONGPASS") => QuotaError::Refused(
            "it requires a password, and the password of the URL is missing or wrong".into(),
        ),
        _ if ["NOPERM", "no permissions", "ACL failure", "can't run this command", "can't access"]
            .iter()
            .any(|words| text.contains(words)) =>
        {
            QuotaError::Refused(format!("the user of the URL lacks a permission ({text})"))
        }
        _ => QuotaError::Unavailable(text),
    }
}
