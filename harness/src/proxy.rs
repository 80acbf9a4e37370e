//! A bad network in this process: a proxy between a client and a server that cuts, stalls and
//! loses on demand. It copies bytes and knows next to nothing of what they mean.

mod connection;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::connection::Connection;
use crate::Error;
use crate::server::free_port;

const PATIENCE_WITH_BINDING: Duration = Duration::from_secs(30);

/// Listens for others until dropped. All verbs act on open connections and new ones alike.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<Acceptor>>,
}

/// What the threads of the connections look at.
pub(crate) struct Shared {
    server: Mutex<SocketAddr>,
    faults: Faults,
    connections: Mutex<Vec<Weak<Connection>>>,
}

struct Faults {
    drops_answers: AtomicBool,
    stalls: AtomicBool,
    /// The largest number stands for no limit.
    cut_after: AtomicU64,
}

/// The thread that accepts, with the socket that it owns.
struct Acceptor {
    thread: JoinHandle<()>,
    ends: Arc<AtomicBool>,
}

impl Proxy {
    /// A proxy to the server, such as `127.0.0.1:5432`, on a port of its own.
    pub fn to(server: impl ToSocketAddrs) -> Result<Self, Error> {
        let server = Mutex::new(first_address(server)?);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let faults = Faults {
            drops_answers: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            cut_after: AtomicU64::new(u64::MAX),
        };
        let shared = Arc::new(Shared { server, faults, connections: Mutex::default() });
        let proxy = Self { address, shared, acceptor: Mutex::new(None) };
        proxy.repair()?;
        Ok(proxy)
    }

    /// Where clients connect to. It stays the same through all faults.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections at once and refuses new ones.
    pub fn cut(&self) {
        if let Some(acceptor) = locked(&self.acceptor).take() {
            acceptor.ends.store(true, Ordering::SeqCst);
            // Nothing but a connection wakes a thread that accepts.
            let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
            let _ = acceptor.thread.join();
        }
        self.shared.close_all();
    }

    /// Stands before another server from now on, as after a failover: all connections are closed,
    /// and new ones go there.
    pub fn point_at(&self, server: impl ToSocketAddrs) -> Result<(), Error> {
        // In this order, so that a connection accepted meanwhile is closed or goes there already.
        *locked(&self.shared.server) = first_address(server)?;
        self.shared.close_all();
        Ok(())
    }

    /// Ends all faults: new connections are accepted and nothing is lost any more.
    pub fn repair(&self) -> Result<(), Error> {
        self.drop_answers(false);
        self.stall(false);
        self.cut_after(None);
        let mut acceptor = locked(&self.acceptor);
        if acceptor.is_none() {
            *acceptor = Some(Acceptor::on(self.address, &self.shared)?);
        }
        Ok(())
    }

    /// Forwards requests, but closes the connection when the answer begins to arrive, so that the
    /// server has done what the client cannot know of. `100 Continue` is passed on, for without it
    /// the request would not be sent.
    pub fn drop_answers(&self, drops: bool) {
        self.shared.faults.drops_answers.store(drops, Ordering::SeqCst);
    }

    /// Accepts connections and holds back whatever is sent, either way, until called off.
    pub fn stall(&self, stalls: bool) {
        self.shared.faults.stalls.store(stalls, Ordering::SeqCst);
    }

    /// Forwards so many bytes of each connection's client, counted from its beginning, and then
    /// closes it. `None` calls it off.
    pub fn cut_after(&self, bytes: impl Into<Option<u64>>) {
        self.shared.faults.cut_after.store(bytes.into().unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        locked(&self.shared.connections)
            .iter()
            .filter(|connection| connection.upgrade().is_some_and(|open| !open.is_closed()))
            .count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Acceptor {
    fn on(address: SocketAddr, shared: &Arc<Shared>) -> Result<Self, Error> {
        let deadline = Instant::now() + PATIENCE_WITH_BINDING;
        let listener = loop {
            match TcpListener::bind(address) {
                // A child that some thread is about to start has a copy of the last listener until it runs its program.
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(5));
                }
                bound => break bound,
            }
        }
        .map_err(Error::while_doing(format!("listening on {address} for the proxy")))?;
        let ends = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (shared, ends) = (Arc::clone(shared), Arc::clone(&ends));
            move || {
                for client in listener.incoming() {
                    if ends.load(Ordering::SeqCst) {
                        break;
                    }
                    // One that failed has gone already.
                    if let Ok(client) = client {
                        shared.take(client);
                    }
                }
            }
        });
        Ok(Self { thread, ends })
    }
}

impl Shared {
    fn take(self: &Arc<Self>, client: TcpStream) {
        let connection = Arc::new(Connection::from(client));
        {
            let mut connections = locked(&self.connections);
            connections.retain(|connection| connection.strong_count() > 0);
            connections.push(Arc::downgrade(&connection));
        }
        let shared = Arc::clone(self);
        thread::spawn(move || connection.serve(&shared));
    }

    fn close_all(&self) {
        for connection in locked(&self.connections).drain(..) {
            if let Some(connection) = connection.upgrade() {
                connection.close();
            }
        }
    }

    pub(crate) fn server(&self) -> SocketAddr {
        *locked(&self.server)
    }

    pub(crate) fn drops_answers(&self) -> bool {
        self.faults.drops_answers.load(Ordering::SeqCst)
    }

    pub(crate) fn stalls(&self) -> bool {
        self.faults.stalls.load(Ordering::SeqCst)
    }

    pub(crate) fn cut_after(&self) -> u64 {
        self.faults.cut_after.load(Ordering::SeqCst)
    }
}

fn first_address(server: impl ToSocketAddrs) -> Result<SocketAddr, Error> {
    server
        .to_socket_addrs()
        .map_err(Error::while_doing("looking up the server behind the proxy"))?
        .next()
        .ok_or_else(|| Error::new("the server behind the proxy has no address"))
}

/// A thread that panicked leaves nothing half done in what our locks guard.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
