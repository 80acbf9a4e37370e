//! What a connection is doing, and how long it may go on like that: a client that sends no request, or half of one, or
//! does not read its answer, must not hold a place for ever.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// From the connection, or the first byte of a request, to the end of its head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection is kept for the next request. Longer than proxies and clients keep theirs (Caddy for two minutes,
/// others for less): else they would send requests into what is just being closed, and never learn whether they were
/// heard.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_secs(180);
/// How long a client may leave the next piece of an answer unread.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a connection is looked at, at least.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// How a connection of HTTP/2 begins, and no request of HTTP/1.
const HTTP2_BEGINS: &[u8] = b"PRI";

#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Requests that are not wholly answered.
    requests: usize,
    /// Of those: the client has to read before more is sent.
    unread: usize,
    /// When a request began or ended, or a piece of an answer was sent.
    moved_at: Instant,
    /// When the first byte of a request came, of HTTP/1, while its head is not complete.
    head_since: Option<Instant>,
    has_asked: bool,
    /// The first bytes of the connection.
    first: Vec<u8>,
}

impl Activity {
    pub(super) fn new() -> Arc<Activity> {
        Arc::new(Activity(Mutex::new(State {
            requests: 0,
            unread: 0,
            moved_at: Instant::now(),
            head_since: None,
            has_asked: false,
            first: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the client has had all the time there is.
    pub(super) async fn expired(&self) {
        loop {
            let deadline = self.state().deadline();
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return;
            }
            let next = now + CHECK_EVERY;
            tokio::time::sleep_until(deadline.map_or(next, |deadline| deadline.min(next))).await;
        }
    }

    /// Since when it has done nothing, and whether it ever did; none while there is a request.
    pub(super) fn idle_since(&self) -> Option<(bool, Instant)> {
        let state = self.state();
        (state.requests == 0).then_some((state.has_asked, state.moved_at))
    }

    fn read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.first.len() < HTTP2_BEGINS.len() {
            let missing = HTTP2_BEGINS.len() - state.first.len();
            state.first.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        }
        let is_http2 = state.first == HTTP2_BEGINS;
        if is_http2 {
            // Its frames come at any time, and say nothing about requests.
            state.head_since = None;
        } else if state.requests == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
        }
    }

    /// A request has come in; it ends when the answer's body is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Asked {
        let mut state = self.state();
        state.requests += 1;
        state.has_asked = true;
        state.head_since = None;
        state.moved_at = Instant::now();
        Asked { activity: self.clone(), is_unread: false }
    }
}

impl State {
    fn deadline(&self) -> Option<Instant> {
        match (self.requests, self.head_since, self.has_asked) {
            (0, Some(since), _) => Some(since + HEAD_TIMEOUT),
            (0, None, true) => Some(self.moved_at + NEXT_REQUEST_TIMEOUT),
            (0, None, false) => Some(self.moved_at + HEAD_TIMEOUT),
            // What is worked on has limits of its own.
            (requests, _, _) => (self.unread == requests).then(|| self.moved_at + READ_TIMEOUT),
        }
    }
}

/// A request that is not wholly answered.
pub(super) struct Asked {
    activity: Arc<Activity>,
    is_unread: bool,
}

impl Asked {
    /// Whether the client has to read before more is sent.
    fn set_unread(&mut self, is_unread: bool) {
        let mut state = self.activity.state();
        state.moved_at = Instant::now();
        match (self.is_unread, is_unread) {
            (false, true) => state.unread += 1,
            (true, false) => state.unread -= 1,
            _ => {}
        }
        self.is_unread = is_unread;
    }

    /// The body of its answer.
    pub(super) fn answered(mut self, body: Body) -> Answered {
        self.set_unread(true);
        Answered { body, asked: self }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.set_unread(false);
        self.activity.state().requests -= 1;
    }
}

/// A body that notes when it is read.
pub(super) struct Answered {
    body: Body,
    asked: Asked,
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        // Pending: the client waits for us.
        self.asked.set_unread(polled.is_ready());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that notes when bytes come.
pub(super) struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>) -> Watched {
        Watched { stream, activity }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = &buffer.filled()[before..];
        if !read.is_empty() {
            self.activity.read(read);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Handlers answer every request with something.
pub(super) type Answer = Result<axum::http::Response<Answered>, Infallible>;
