//! One connection through the proxy. Two threads copy, one in each direction. Each checks the faults before it forwards
//! bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::Shared;

const POLL: Duration = Duration::from_millis(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONTINUE: &[u8] = b"HTTP/1.1 100";

pub(crate) struct Connection {
    client: TcpStream,
    server: OnceLock<TcpStream>,
    /// The client has sent the maximum number of bytes, and gets no answer to them.
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
    /// Copies in both directions until both have ended or a fault closes the connection.
    pub(crate) fn serve(&self, shared: &Shared) {
        if let Ok(server) = TcpStream::connect_timeout(&shared.server(), CONNECT_TIMEOUT) {
            // Without this, the proxy itself would delay small packets.
            let _ = server.set_nodelay(true);
            let _ = self.client.set_nodelay(true);
            let server = self.server.get_or_init(|| server);
            // `close` may have run before the connection to the server existed.
            if !self.is_closed() {
                thread::scope(|scope| {
                    scope.spawn(|| self.copy_requests(server, shared));
                    self.copy_answers(server, shared);
                });
            }
        }
        self.close();
    }

    /// Closes both sides at once.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // This fails if they are already closed.
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
            // Cut exactly at the limit, so that a client that waits for its answer gets none.
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
                // The thread that copies the request closes the connection.
                true => Some(()),
                false if is_lost => None,
                false => client.write_all(bytes).ok(),
            }
        });
    }

    /// Forwards each block by calling `forward`. `None` closes the connection.
    fn copy(
        &self,
        mut from: &TcpStream,
        to: &TcpStream,
        shared: &Shared,
        mut forward: impl FnMut(&[u8]) -> Option<()>,
    ) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = from.read(&mut buffer);
            while shared.stalls() && !self.is_closed() {
                thread::sleep(POLL);
            }
            match count {
                // This direction has ended. The other one continues.
                Ok(0) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(count) if !self.is_closed() && forward(&buffer[..count]).is_some() => {}
                _ => return self.close(),
            }
        }
    }
}
