//! The webhook driver's promises, kept towards receivers of every temper.

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

/// Answers every request with the same bytes and then hangs up; keeps what it was sent, head and body.
struct Receiver {
    address: SocketAddr,
    got: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    async fn answering(answer: &str) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let got: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, answer) = (got.clone(), answer.to_owned());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut raw, mut some) = (Vec::new(), [0; 4_096]);
                while !is_whole(&raw) {
                    match stream.read(&mut some).await {
                        Ok(count) if count > 0 => raw.extend_from_slice(&some[..count]),
                        _ => break,
                    }
                }
                seen.lock().expect("unharmed").push(String::from_utf8(raw).expect("text"));
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        Receiver { address, got }
    }

    fn url(&self) -> String {
        format!("http://{}/hook?token=hush", self.address)
    }

    fn webhook(&self) -> Webhook {
        webhook(&self.url(), SECRET, true)
    }

    fn got(&self) -> Vec<String> {
        self.got.lock().expect("unharmed").clone()
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
