//! An HTTP/2 client that sends raw frames and reads no answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_OF_REQUEST: u8 = 1 | 4;
const INITIAL_WINDOW_SIZE: u16 = 4;
const CANCEL: u32 = 8;

/// Its window is 0, so the server cannot send any byte of a body. It answers pings like a live client.
pub struct NonReadingClient {
    writer: Arc<Mutex<OwnedWriteHalf>>,
    is_closed: Arc<AtomicBool>,
    reading: JoinHandle<()>,
    next_stream: u32,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

impl NonReadingClient {
    pub async fn connect(address: SocketAddr) -> NonReadingClient {
        let (reader, mut writer) = TcpStream::connect(address).await.expect("connected").into_split();
        let mut window = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
        window.extend(0_u32.to_be_bytes());
        let opening = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &window)].concat();
        writer.write_all(&opening).await.expect("sent");
        let (writer, is_closed) = (Arc::new(Mutex::new(writer)), Arc::new(AtomicBool::new(false)));
        let (answers, closed) = (writer.clone(), is_closed.clone());
        let reading = tokio::spawn(async move {
            answer_pings(reader, answers).await;
            closed.store(true, Ordering::SeqCst);
        });
        NonReadingClient { writer, is_closed, reading, next_stream: 1 }
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Returns the stream id.
    pub async fn get(&mut self, path: &str) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        // Indexes of the HPACK static table: GET, http, then path and authority with their length.
        let mut headers = vec![0x82, 0x86, 0x44, u8::try_from(path.len()).expect("short")];
        headers.extend(path.as_bytes());
        headers.extend([0x41, 5]);
        headers.extend(b"wharf");
        self.send(frame(HEADERS, END_OF_REQUEST, stream, &headers)).await;
        stream
    }

    pub async fn reset(&mut self, stream: u32) {
        self.send(frame(RESET, 0, stream, &CANCEL.to_be_bytes())).await;
    }

    /// Ignores errors, because the server may have closed the connection.
    async fn send(&self, frame: Vec<u8>) {
        let _ = self.writer.lock().await.write_all(&frame).await;
    }
}

impl Drop for NonReadingClient {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Runs until the server closes the connection.
async fn answer_pings(mut reader: OwnedReadHalf, writer: Arc<Mutex<OwnedWriteHalf>>) {
    loop {
        let mut head = [0; 9];
        if reader.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if reader.read_exact(&mut payload).await.is_err() {
            return;
        }
        let answer = match (head[3], head[4]) {
            (SETTINGS, 0) => frame(SETTINGS, ACK, 0, &[]),
            (PING, 0) => frame(PING, ACK, 0, &payload),
            _ => continue,
        };
        if writer.lock().await.write_all(&answer).await.is_err() {
            return;
        }
    }
}
