//! A server with scripted answers, for behaviour that tests cannot get from a real server.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    /// With its query.
    pub path: String,
    /// Head and body, unchanged.
    pub raw: Vec<u8>,
}

/// Stops on drop.
pub struct ScriptedServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    stopped: Arc<AtomicBool>,
}

impl ScriptedServer {
    /// `answer` gets the request and the number of requests before it. Its result is sent unchanged, and then the
    /// connection is closed.
    pub fn start(
        answer: impl Fn(&ReceivedRequest, usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (requests, stopped) =
            (Arc::<Mutex<Vec<ReceivedRequest>>>::default(), Arc::<AtomicBool>::default());
        let (received, is_stopped, answer) = (requests.clone(), stopped.clone(), Arc::new(answer));
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (received, answer) = (received.clone(), answer.clone());
                thread::spawn(move || {
                    let Some(request) = read(&mut stream) else { return };
                    let before = {
                        let mut received = received.lock().expect("no test panics while it holds the lock");
                        received.push(request.clone());
                        received.len() - 1
                    };
                    let _ = stream.write_all(&answer(&request, before));
                });
            }
        });
        ScriptedServer { address, requests, stopped }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().expect("no test panics while it holds the lock").clone()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn read(stream: &mut TcpStream) -> Option<ReceivedRequest> {
    let mut raw = Vec::new();
    loop {
        let mut some = [0; 8_192];
        let count = stream.read(&mut some).ok().filter(|count| *count > 0)?;
        raw.extend_from_slice(&some[..count]);
        let text = String::from_utf8_lossy(&raw).into_owned();
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let lower = head.to_lowercase();
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        if raw.len() >= head.len() + 4 + length {
            let mut words = head.split(' ').map(str::to_owned);
            return Some(ReceivedRequest { method: words.next()?, path: words.next()?, raw });
        }
    }
}

/// An HTTP answer with these parts.
pub fn response(status: u16, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
