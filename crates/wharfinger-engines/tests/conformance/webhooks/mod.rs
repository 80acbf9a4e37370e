//! Tests of the webhook driver with different receivers.

mod answers;
mod private;
mod signed;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use uuid::Uuid;
use wharfinger_calls::faults::Faults;
use wharfinger_engines::webhooks::{Endpoint, Message, Webhook};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NOW: i64 = 1_800_000_000;

/// Answers every request with the same bytes and closes the connection. Stores the requests, with head and body.
struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    async fn answering(answer: &str) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let received: Arc<Mutex<Vec<String>>> = Arc::default();
        let (requests, answer) = (received.clone(), answer.to_owned());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut raw, mut buffer) = (Vec::new(), [0; 4_096]);
                while !is_whole(&raw) {
                    match stream.read(&mut buffer).await {
                        Ok(count) if count > 0 => raw.extend_from_slice(&buffer[..count]),
                        _ => break,
                    }
                }
                requests
                    .lock()
                    .expect("no thread panics with the lock")
                    .push(String::from_utf8(raw).expect("text"));
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        Receiver { address, received }
    }

    fn url(&self) -> String {
        format!("http://{}/hook?token=hush", self.address)
    }

    fn webhook(&self) -> Webhook {
        webhook(&self.url(), SECRET, true)
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().expect("no thread panics with the lock").clone()
    }
}

fn is_whole(raw: &[u8]) -> bool {
    let text = String::from_utf8_lossy(raw).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

fn webhook(url: &str, secrets: &str, allow_private: bool) -> Webhook {
    let endpoint = Endpoint::new(url, allow_private).expect("an endpoint");
    Webhook::new(endpoint, secrets.parse().expect("secrets"), Faults::none()).expect("a client")
}

fn message() -> Message {
    Message { id: Uuid::from_u128(7), sent_at: NOW, body: r#"{"type":"file-ready"}"#.into() }
}
