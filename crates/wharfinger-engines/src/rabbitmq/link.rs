//! One connection to the broker that is made when it is needed, with all that is declared, and made again when it
//! was lost. Everything it waits for has an end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::error::BrokerError;
use super::{RabbitOptions, greeting, topology};

pub(super) const CONNECT_TIME: Duration = Duration::from_secs(10);
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// Twice that without a sign of life, and the driver gives a connection up.
const HEARTBEAT_S: u16 = 10;

/// What both connections of a process share.
pub(super) struct Shared {
    pub(super) options: RabbitOptions,
    pub(super) closed: CancellationToken,
    version: Mutex<Option<String>>,
}

pub(super) struct Link {
    shared: Arc<Shared>,
    /// What it is for, as the broker's own pages show it.
    purpose: &'static str,
    held: Mutex<Option<Arc<Connection>>>,
    /// Whoever has it may connect and declare.
    turn: tokio::sync::Mutex<()>,
    declared: AtomicBool,
}

impl Shared {
    pub(super) fn new(options: RabbitOptions) -> Arc<Shared> {
        Arc::new(Shared { options, closed: CancellationToken::new(), version: Mutex::default() })
    }

    pub(super) fn version(&self) -> Option<String> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn uri(&self) -> Result<AMQPUri, BrokerError> {
        let url = self.options.url.as_str();
        // The driver's own words would repeat the URL.
        let shape = "the URL is not of the form amqp://user:password@host:5672/vhost, or amqps://";
        let mut uri: AMQPUri = url.parse().map_err(|_| BrokerError::Refused(shape.to_owned()))?;
        // The driver takes an IPv6 address for no host at all, and goes to localhost.
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
        let version = greeting::ask_version(&uri).await.map_err(|error| error.doing(&address))?;
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = Some(version);
        let name = format!("wharfinger {} {purpose}", self.options.instance);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let vhost = uri.vhost.clone();
        Connection::connect_uri(uri, properties).await.map_err(|error| match BrokerError::from(error) {
            BrokerError::Refused(why) if vhost.is_empty() => BrokerError::Refused(format!(
                "{address}: {why}; a URL that ends in / names a virtual host without a name: leave the / away or \
                 write /%2F for the default one"
            )),
            other => other.doing(&address),
        })
    }
}

impl Link {
    pub(super) fn new(shared: Arc<Shared>, purpose: &'static str) -> Link {
        Link {
            shared,
            purpose,
            held: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            declared: AtomicBool::new(false),
        }
    }

    /// The connection as it is, or a new one, with everything declared. One attempt, together with whoever else
    /// asks.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, BrokerError> {
        let connecting = async {
            let _turn = self.turn.lock().await;
            if self.shared.closed.is_cancelled() {
                return Err(BrokerError::closed());
            }
            let live = self.held().take().filter(|connection| connection.status().connected());
            let connection = match live {
                Some(connection) => connection,
                None => {
                    self.declared.store(false, Ordering::SeqCst);
                    let connect = self.shared.connect(self.purpose);
                    Arc::new(self.shared.options.faults.around("broker connect", connect).await?)
                }
            };
            // Held before it is declared upon: an error of one channel is none of the connection.
            *self.held() = Some(Arc::clone(&connection));
            refuse_blocked(&connection)?;
            if !self.declared.load(Ordering::SeqCst) {
                let declare = self.declare(&connection);
                self.shared.options.faults.around("broker declare", declare).await?;
                self.declared.store(true, Ordering::SeqCst);
            }
            Ok(connection)
        };
        match timeout(CONNECT_TIME, connecting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(BrokerError::late("connecting to the broker")),
        }
    }

    async fn declare(&self, connection: &Connection) -> Result<(), BrokerError> {
        let channel = connection.create_channel().await?;
        topology::declare(&channel, self.shared.options.delayed_exchange).await
    }

    pub(super) async fn channel(&self) -> Result<(Arc<Connection>, Channel), BrokerError> {
        let connection = self.connection().await?;
        match timeout(CONNECT_TIME, connection.create_channel()).await {
            Ok(channel) => Ok((connection, channel?)),
            Err(_) => {
                self.give_up(&connection);
                Err(BrokerError::late("opening a channel"))
            }
        }
    }

    /// Something that was declared is gone, so all of it is declared again before the next use.
    pub(super) fn declare_again(&self) {
        self.declared.store(false, Ordering::SeqCst);
    }

    /// The connection answers no more; the next use makes a new one. A connection that the broker blocks is kept,
    /// for another one would be blocked as well.
    pub(super) fn give_up(&self, connection: &Arc<Connection>) {
        if connection.status().blocked() {
            return;
        }
        let mut held = self.held();
        if held.as_ref().is_some_and(|held| Arc::ptr_eq(held, connection)) {
            *held = None;
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn close(&self) {
        let closing = async {
            let _turn = self.turn.lock().await;
            let last = self.held().take();
            if let Some(connection) = last {
                let _ = connection.close(200, "closed".into()).await;
            }
        };
        if timeout(CLOSE_TIME, closing).await.is_err() {
            tracing::warn!(purpose = self.purpose, "the broker did not answer a goodbye");
        }
    }
}

/// On a blocked connection nothing is written and nothing that was written is read: better to hear that at once.
fn refuse_blocked(connection: &Connection) -> Result<(), BrokerError> {
    if connection.status().blocked() {
        return Err(BrokerError::Unavailable("it takes no messages: out of memory or of disk".to_owned()));
    }
    Ok(())
}
