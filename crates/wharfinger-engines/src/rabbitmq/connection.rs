//! A connection to the broker that is opened on demand, declares all queues, and is opened again after it was lost.
//! Every wait has a timeout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::error::BrokerError;
use super::topology::Names;
use super::{RabbitOptions, handshake, topology};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The driver drops a connection after twice this time without a heartbeat.
const HEARTBEAT_S: u16 = 10;

/// State that both connections of a process share.
pub(super) struct Shared {
    pub(super) options: RabbitOptions,
    pub(super) names: Names,
    pub(super) closed: CancellationToken,
    version: Mutex<Option<String>>,
}

pub(super) struct SharedConnection {
    shared: Arc<Shared>,
    /// Part of the connection name in the management UI of the broker.
    purpose: &'static str,
    open: Mutex<Option<Arc<Connection>>>,
    /// Locked while connecting and declaring.
    connecting: tokio::sync::Mutex<()>,
    declared: AtomicBool,
}

impl Shared {
    pub(super) fn new(options: RabbitOptions) -> Arc<Shared> {
        let names = Names::new(&options.prefix);
        Arc::new(Shared { options, names, closed: CancellationToken::new(), version: Mutex::default() })
    }

    pub(super) fn version(&self) -> Option<String> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn uri(&self) -> Result<AMQPUri, BrokerError> {
        let url = self.options.url.as_str();
        // The message of the driver would contain the URL.
        let shape = "the URL must have the form amqp://user:password@host:5672/vhost, or start with amqps://";
        let mut uri: AMQPUri = url.parse().map_err(|_| BrokerError::Refused(shape.to_owned()))?;
        // The driver ignores an IPv6 host and would connect to localhost.
        let authority = url.split_once("://").map_or("", |(_, rest)| rest);
        let authority = authority.split(['/', '?']).next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            uri.authority.host = address.to_owned();
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_S);
        Ok(uri)
    }

    async fn connect(&self, purpose: &str) -> Result<Connection, BrokerError> {
        wharfinger_calls::tls::install_provider();
        let uri = self.uri()?;
        let address = format!("{}:{}", uri.authority.host, uri.authority.port);
        let version = handshake::ask_version(&uri).await.map_err(|error| error.context(&address))?;
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = Some(version);
        let name = format!("wharfinger {} {purpose}", self.options.instance);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let vhost = uri.vhost.clone();
        Connection::connect_uri(uri, properties).await.map_err(|error| match BrokerError::from(error) {
            BrokerError::Refused(why) if vhost.is_empty() => BrokerError::Refused(format!(
                "{address}: {why}; a URL that ends with / names a virtual host with an empty name: remove the / or \
                 write /%2F for the default virtual host"
            )),
            other => other.context(&address),
        })
    }
}

impl SharedConnection {
    pub(super) fn new(shared: Arc<Shared>, purpose: &'static str) -> SharedConnection {
        SharedConnection {
            shared,
            purpose,
            open: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            declared: AtomicBool::new(false),
        }
    }

    /// Returns the open connection, or opens one and declares the queues. Concurrent callers share one attempt.
    pub(super) async fn get(&self) -> Result<Arc<Connection>, BrokerError> {
        let connecting = async {
            let _guard = self.connecting.lock().await;
            if self.shared.closed.is_cancelled() {
                return Err(BrokerError::closed());
            }
            let live = self.slot().take().filter(|connection| connection.status().connected());
            let connection = match live {
                Some(connection) => connection,
                None => {
                    self.declared.store(false, Ordering::SeqCst);
                    let connect = self.shared.connect(self.purpose);
                    Arc::new(self.shared.options.faults.around("broker connect", connect).await?)
                }
            };
            // Stored before declaring: an error closes only the channel, and the connection stays usable.
            *self.slot() = Some(Arc::clone(&connection));
            refuse_blocked(&connection)?;
            if !self.declared.load(Ordering::SeqCst) {
                let declare = self.declare(&connection);
                self.shared.options.faults.around("broker declare", declare).await?;
                self.declared.store(true, Ordering::SeqCst);
            }
            Ok(connection)
        };
        match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(BrokerError::late("connecting to the broker")),
        }
    }

    async fn declare(&self, connection: &Connection) -> Result<(), BrokerError> {
        let channel = connection.create_channel().await?;
        topology::declare(&channel, &self.shared.names, self.shared.options.delayed_exchange).await
    }

    pub(super) async fn channel(&self) -> Result<(Arc<Connection>, Channel), BrokerError> {
        let connection = self.get().await?;
        match timeout(CONNECT_TIMEOUT, connection.create_channel()).await {
            Ok(channel) => Ok((connection, channel?)),
            Err(_) => {
                self.discard(&connection);
                Err(BrokerError::late("opening a channel"))
            }
        }
    }

    /// Declares all queues again before the next use, because one is missing.
    pub(super) fn declare_again(&self) {
        self.declared.store(false, Ordering::SeqCst);
    }

    /// Drops a connection that does not answer. The next use opens a new one. A connection that the broker blocks is
    /// kept, because a new one would be blocked too.
    pub(super) fn discard(&self, connection: &Arc<Connection>) {
        if connection.status().blocked() {
            return;
        }
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|open| Arc::ptr_eq(open, connection)) {
            *slot = None;
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn close(&self) {
        let closing = async {
            let _guard = self.connecting.lock().await;
            let last = self.slot().take();
            if let Some(connection) = last {
                let _ = connection.close(200, "closed".into()).await;
            }
        };
        if timeout(CLOSE_TIMEOUT, closing).await.is_err() {
            tracing::warn!(
                purpose = self.purpose,
                "RabbitMQ did not confirm the close of a connection, it is dropped"
            );
        }
    }
}

/// The broker reads nothing from a blocked connection, so this returns an error instead of waiting for a timeout.
fn refuse_blocked(connection: &Connection) -> Result<(), BrokerError> {
    if connection.status().blocked() {
        return Err(BrokerError::Unavailable(
            "it accepts no messages: it is low on memory or disk space".to_owned(),
        ));
    }
    Ok(())
}
