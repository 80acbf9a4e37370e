//! A proxy between a client and a server that simulates a bad network: it closes connections, delays bytes and drops
//! answers on request. It copies bytes and does not parse the protocol, except for `100 Continue`.

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

const BIND_TIMEOUT: Duration = Duration::from_secs(30);

/// Listens until dropped. Every method affects open and new connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Mutex<Option<Acceptor>>,
}

/// State that is shared with the threads of the connections.
pub(crate) struct Shared {
    server: Mutex<SocketAddr>,
    faults: Faults,
    connections: Mutex<Vec<Weak<Connection>>>,
}

struct Faults {
    drops_answers: AtomicBool,
    stalls: AtomicBool,
    /// In bytes. `u64::MAX` means no limit.
    cut_after: AtomicU64,
}

/// The thread that accepts connections. It owns the listening socket.
struct Acceptor {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy to the server, such as `127.0.0.1:5432`, on a free port.
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

    /// The address for clients. It never changes.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections at once and refuses new ones.
    pub fn cut(&self) {
        if let Some(acceptor) = locked(&self.acceptor).take() {
            acceptor.stop.store(true, Ordering::SeqCst);
            // A connection is the only way to wake the accepting thread.
            let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
            let _ = acceptor.thread.join();
        }
        self.shared.close_all();
    }

    /// Forwards to another server from now on, as after a failover. Closes all connections.
    pub fn point_at(&self, server: impl ToSocketAddrs) -> Result<(), Error> {
        // In this order: a connection that is accepted in between is closed or already uses the new server.
        *locked(&self.shared.server) = first_address(server)?;
        self.shared.close_all();
        Ok(())
    }

    /// Ends all faults: accepts new connections and forwards everything.
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

    /// Forwards requests, and closes the connection when the answer arrives. So the server has executed the request,
    /// and the client does not know it. Forwards `100 Continue`, because the client does not send the body without it.
    pub fn drop_answers(&self, drops: bool) {
        self.shared.faults.drops_answers.store(drops, Ordering::SeqCst);
    }

    /// With `true`, accepts connections and forwards nothing, in both directions. With `false`, forwards again.
    pub fn stall(&self, stalls: bool) {
        self.shared.faults.stalls.store(stalls, Ordering::SeqCst);
    }

    /// Closes each connection after its client has sent this number of bytes. `None` removes the limit.
    pub fn cut_after(&self, bytes: impl Into<Option<u64>>) {
        self.shared.faults.cut_after.store(bytes.into().unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// The number of open connections.
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
        let deadline = Instant::now() + BIND_TIMEOUT;
        let listener = loop {
            match TcpListener::bind(address) {
                // A child process that another thread is starting holds a copy of the old listener until its `exec`.
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(5));
                }
                bound => break bound,
            }
        }
        .map_err(Error::while_doing(format!("listening on {address} for the proxy")))?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (shared, stop) = (Arc::clone(shared), Arc::clone(&stop));
            move || {
                for client in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    // A failed connection needs no handling.
                    if let Ok(client) = client {
                        shared.start_connection(client);
                    }
                }
            }
        });
        Ok(Self { thread, stop })
    }
}

impl Shared {
    fn start_connection(self: &Arc<Self>, client: TcpStream) {
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

/// Ignores poisoning: every change under these locks is a single assignment or call.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
