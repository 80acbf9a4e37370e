//! A server that says what a test tells it to say, for what no real one can be brought to do.

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
    /// As it came, head and body.
    pub raw: Vec<u8>,
}

/// Ends when it is dropped.
pub struct ScriptedServer {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<ReceivedRequest>>>,
    ended: Arc<AtomicBool>,
}

impl ScriptedServer {
    /// What is answered may depend on the request and on how many came before it. It is written as it is, and
    /// then the connection is closed.
    pub fn start(
        answer: impl Fn(&ReceivedRequest, usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (asked, ended) = (Arc::<Mutex<Vec<ReceivedRequest>>>::default(), Arc::<AtomicBool>::default());
        let (seen, is_over, answer) = (asked.clone(), ended.clone(), Arc::new(answer));
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (seen, answer) = (seen.clone(), answer.clone());
                thread::spawn(move || {
                    let Some(request) = read(&mut stream) else { return };
                    let before = {
                        let mut seen = seen.lock().expect("no test panics with it");
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    let _ = stream.write_all(&answer(&request, before));
                });
            }
        });
        ScriptedServer { address, asked, ended }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.asked.lock().expect("no test panics with it").clone()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
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

/// An answer of the usual shape.
pub fn response(status: u16, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} So\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
