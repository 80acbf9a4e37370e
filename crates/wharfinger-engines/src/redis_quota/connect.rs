//! The connection to Redis, one server or a cluster: made when it is first needed, thrown away when it fails.

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

/// How long an answer is waited for, unless somebody says otherwise; a connection for twice as long.
const PATIENCE: Duration = Duration::from_secs(1);
const TRIES_MAX: u32 = 2;
/// Before it, a script that had read the server's name could not write.
const VERSION_MIN: (u32, u32) = (6, 0);

#[derive(Clone)]
enum Link {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

struct Open {
    link: Link,
    version: String,
    number: u64,
}

impl Open {
    fn parts(&self) -> (Link, u64, String) {
        (self.link.clone(), self.number, self.version.clone())
    }
}

pub(super) struct Connector {
    client: Client,
    address: String,
    patience: Duration,
    /// Made under the lock, so that many who find it missing make one; and where it fails, all of them hear so.
    open: Mutex<Tries>,
    tries: AtomicU64,
}

#[derive(Default)]
struct Tries {
    open: Option<Open>,
    failed: Option<QuotaError>,
}

impl Connector {
    pub(super) fn new(url: &str) -> Result<Connector, QuotaError> {
        // The library's own message may hold the URL, and that a password.
        let unusable = |_: RedisError| QuotaError::Refused("the URL is not one of Redis".into());
        let info = url.into_connection_info().map_err(unusable)?;
        let address = info.addr().to_string();
        let client = Client::open(info).map_err(unusable)?;
        Ok(Connector {
            client,
            address,
            patience: PATIENCE,
            open: Mutex::default(),
            tries: AtomicU64::new(0),
        })
    }

    pub(super) fn with_patience(self, patience: Duration) -> Connector {
        Connector { patience, ..self }
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
        let mut tries_left = TRIES_MAX;
        loop {
            tries_left -= 1;
            let (link, number, _) = self.link().await?;
            let answered = match link {
                Link::One(mut one) => self.bounded(call.invoke_async(&mut one)).await,
                Link::Cluster(mut cluster) => self.bounded(call.invoke_async(&mut cluster)).await,
            };
            if let Err(Unanswered { error: QuotaError::Away(_), is_broken }) = &answered {
                self.drop_link(number).await;
                if *is_broken && tries_left > 0 {
                    continue;
                }
            }
            return answered.map_err(|unanswered| unanswered.error);
        }
    }

    /// Asks the server for a sign of life and nothing else.
    pub(super) async fn ping(&self) -> Result<(), QuotaError> {
        let ping = redis::cmd("PING");
        let mut tries_left = TRIES_MAX;
        loop {
            tries_left -= 1;
            let (link, number, _) = self.link().await?;
            let answered: Result<String, Unanswered> = match link {
                Link::One(mut one) => self.bounded(ping.query_async(&mut one)).await,
                Link::Cluster(mut cluster) => self.bounded(ping.query_async(&mut cluster)).await,
            };
            match answered {
                Ok(_) => return Ok(()),
                Err(Unanswered { error, is_broken }) => {
                    self.drop_link(number).await;
                    if !is_broken || tries_left == 0 {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn link(&self) -> Result<(Link, u64, String), QuotaError> {
        let seen = self.tries.load(Ordering::SeqCst);
        let mut tries = self.open.lock().await;
        if let Some(open) = &tries.open {
            return Ok(open.parts());
        }
        // Whoever stood in line while somebody else tried need not try for themselves.
        let made = self.tries.load(Ordering::SeqCst);
        if let (true, Some(failed)) = (made > seen, &tries.failed) {
            return Err(failed.clone());
        }
        let connected = self.connect(made + 1).await;
        self.tries.fetch_add(1, Ordering::SeqCst);
        match connected {
            Ok(open) => {
                let parts = open.parts();
                *tries = Tries { open: Some(open), failed: None };
                Ok(parts)
            }
            Err(error) => {
                tries.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn drop_link(&self, number: u64) {
        let mut tries = self.open.lock().await;
        if tries.open.as_ref().is_some_and(|open| open.number == number) {
            tries.open = None;
        }
    }

    async fn connect(&self, number: u64) -> Result<Open, QuotaError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience * 2))
            .set_response_timeout(Some(self.patience));
        let mut one = self.bounded(self.client.get_multiplexed_async_connection_with_config(&config)).await?;
        let about = self.info(&mut one).await?;
        let version = about.version()?;
        let link = match about.field("redis_mode") {
            Some("cluster") => {
                let builder = ClusterClientBuilder::new([self.client.get_connection_info().clone()])
                    .connection_timeout(self.patience * 2)
                    .response_timeout(self.patience)
                    .retries(2);
                let cluster = builder.build().map_err(named)?;
                Link::Cluster(self.bounded(cluster.get_async_connection()).await?)
            }
            _ => Link::One(one),
        };
        Ok(Open { link, version, number })
    }

    async fn info(&self, link: &mut (impl ConnectionLike + Send)) -> Result<About, QuotaError> {
        let text = self.bounded(redis::cmd("INFO").arg("server").query_async::<String>(link)).await?;
        Ok(About(text))
    }

    /// Every wait ends, whatever the library thinks.
    async fn bounded<T>(&self, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, Unanswered> {
        match tokio::time::timeout(self.patience * 3, work).await {
            Ok(outcome) => outcome.map_err(|error| {
                let is_broken = error.is_connection_dropped() && !error.is_timeout();
                Unanswered { error: named(error), is_broken }
            }),
            Err(_) => {
                Err(Unanswered { error: QuotaError::Away("no answer in time".into()), is_broken: false })
            }
        }
    }
}

/// A call without an answer, and whether its connection had ended: one that lay idle may have, and nothing else be
/// wrong. Every script may be sent again.
struct Unanswered {
    error: QuotaError,
    is_broken: bool,
}

impl From<Unanswered> for QuotaError {
    fn from(unanswered: Unanswered) -> QuotaError {
        unanswered.error
    }
}

/// What a server says of itself.
struct About(String);

impl About {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    fn version(&self) -> Result<String, QuotaError> {
        let version = self.field("redis_version").unwrap_or("of no version").to_owned();
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found < VERSION_MIN {
            let (major, minor) = VERSION_MIN;
            return Err(QuotaError::Refused(format!(
                "it is {version}, and at least {major}.{minor} is needed"
            )));
        }
        match self.field("run_id") {
            Some(id) if !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit()) => Ok(version),
            _ => Err(QuotaError::Refused(
                "it does not tell its run_id, without which a restart cannot be noticed".into(),
            )),
        }
    }
}

fn named(error: RedisError) -> QuotaError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            QuotaError::Refused("it does not accept the user or the password of the URL".into())
        }
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            QuotaError::Away("it is a replica, and takes no writes".into())
        }
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            QuotaError::Refused(format!("the user of the URL lacks a right ({text})"))
        }
        _ if text.contains("READONLY") => QuotaError::Away("it is a replica, and takes no writes".into()),
        _ if text.contains("OOM") => {
            QuotaError::Away("it is full: raise its maxmemory, and let it evict nothing".into())
        }
        _ if text.contains("NOAUTH") || text.contains("WRONGPASS") => {
            QuotaError::Refused("it asks for a password that the URL does not give".into())
        }
        _ if ["NOPERM", "no permissions", "ACL failure", "can't run this command", "can't access"]
            .iter()
            .any(|words| text.contains(words)) =>
        {
            QuotaError::Refused(format!("the user of the URL lacks a right ({text})"))
        }
        _ => QuotaError::Away(text),
    }
}
