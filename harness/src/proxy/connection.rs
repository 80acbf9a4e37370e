//! One client's connection through the proxy: two threads, each copying one way, and each looking
//! at the faults before it passes anything on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::Shared;

const POLL: Duration = Duration::from_millis(5);
const PATIENCE_WITH_CONNECTING: Duration = Duration::from_secs(5);
const CONTINUE: &[u8] = b"HTTP/1.1 100";

pub(crate) struct Connection {
    client: TcpStream,
    server: OnceLock<TcpStream>,
    /// The client has sent as much as it may: it gets no answer to that.
    is_cut: AtomicBool,
    is_closed: AtomicBool,
}

impl From<TcpStream> for Connection {
    fn from(client: TcpStream) -> Self {
        let [is_cut, is_closed] = [false, false].map(AtomicBool::new);
        Self { client, server: OnceLock::new(), is_cut, is_closed }
    }
}

impl Connection {
    /// Copies both ways until both have ended, or a fault ends them.
    pub(crate) fn serve(&self, shared: &Shared) {
        if let Ok(server) = TcpStream::connect_timeout(&shared.server(), PATIENCE_WITH_CONNECTING) {
            // Small pieces at once, as they came: the delay would be ours and not the network's.
            let _ = server.set_nodelay(true);
            let _ = self.client.set_nodelay(true);
            let server = self.server.get_or_init(|| server);
            // The proxy may have been cut before there was a server's side to close.
            if !self.is_closed() {
                thread::scope(|scope| {
                    scope.spawn(|| self.copy_requests(server, shared));
                    self.copy_answers(server, shared);
                });
            }
        }
        self.close();
    }

    /// Closes both sides now, whatever is under way.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // Those that are closed already cannot be closed again.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = self.server.get() {
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn copy_requests(&self, mut server: &TcpStream, shared: &Shared) {
        let mut forwarded = 0;
        self.copy(&self.client, server, shared, |bytes| {
            let limit = shared.cut_after();
            let left = limit.saturating_sub(forwarded);
            let count = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
            forwarded += count as u64;
            // At the limit already, so that a client that waits for its answer waits in vain.
            let is_cut = forwarded >= limit;
            self.is_cut.store(is_cut, Ordering::SeqCst);
            server.write_all(&bytes[..count]).ok()?;
            (!is_cut).then_some(())
        });
    }

    fn copy_answers(&self, server: &TcpStream, shared: &Shared) {
        let mut client = &self.client;
        self.copy(server, &self.client, shared, |bytes| {
            let is_lost = shared.drops_answers() && !bytes.starts_with(CONTINUE);
            match self.is_cut.load(Ordering::SeqCst) {
                // Who sends the last bytes closes.
                true => Some(()),
                false if is_lost => None,
                false => client.write_all(bytes).ok(),
            }
        });
    }

    /// Passes on piece by piece; `None` from there closes the connection.
    fn copy(
        &self,
        mut from: &TcpStream,
        to: &TcpStream,
        shared: &Shared,
        mut pass_on: impl FnMut(&[u8]) -> Option<()>,
    ) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from.read(&mut buffer);
            while shared.stalls() && !self.is_closed() {
                thread::sleep(POLL);
            }
            match count {
                // The one way has ended in order, and the other goes on.
                Ok(0) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(count) if !self.is_closed() && pass_on(&buffer[..count]).is_some() => {}
                _ => return self.close(),
            }
        }
    }
}
