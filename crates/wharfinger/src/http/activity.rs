//! Tracks what a connection is doing, and its timeouts. A client that sends no request, or half of one, or does not read
//! its answer must not hold a connection slot forever.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Method;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// From the start of the connection, or the first byte of a request, to the end of the request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an idle connection stays open. Longer than the idle timeouts of proxies and clients (Caddy: two minutes, others
/// less). Otherwise they could send a request while we close the connection, and not know whether it was processed.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_secs(180);
/// How long the next piece of an answer may stay unread.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// When all slots are taken, a connection with no answer read for this long may be closed. A client with a large download
/// reads far more often.
const EVICT_UNREAD_AFTER: Duration = Duration::from_secs(5);
/// The longest time between two checks of a connection.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The first bytes of every HTTP/2 connection. No HTTP/1 method that the server knows starts with them.
const HTTP2_PREFACE_START: &[u8] = b"PRI";

#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Requests without a complete answer.
    requests: usize,
    next: u64,
    /// Answers that wait for the client to read.
    unread: BTreeSet<u64>,
    /// Since when the client has read nothing, while there was something to read. A cancelled request does not count as a
    /// read, so a client cannot reset this with new requests. Reading any answer resets it: behind a proxy, the other
    /// answers belong to other clients.
    stalled_since: Option<Instant>,
    /// When the last request started or ended.
    moved_at: Instant,
    /// HTTP/1 only: when the first byte of a request arrived, while its head is incomplete.
    head_since: Option<Instant>,
    had_request: bool,
    /// The first bytes of the connection, to recognise HTTP/2.
    first: Vec<u8>,
}

impl Activity {
    pub(super) fn new() -> Arc<Activity> {
        Arc::new(Activity(Mutex::new(State {
            requests: 0,
            next: 0,
            unread: BTreeSet::new(),
            stalled_since: None,
            moved_at: Instant::now(),
            head_since: None,
            had_request: false,
            first: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when a timeout of the connection has passed.
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

    /// Whether the connection may be closed to free its slot, with its sort key: the lowest is closed first. None while a
    /// request is being processed or an answer is being read.
    pub(super) fn evictable(&self) -> Option<(Evictable, Instant)> {
        let state = self.state();
        if state.requests == 0 {
            let kind = if state.had_request { Evictable::Idle } else { Evictable::NeverUsed };
            return Some((kind, state.moved_at));
        }
        let since = state.stalled()?;
        (since.elapsed() >= EVICT_UNREAD_AFTER).then_some((Evictable::NotReading, since))
    }

    fn read(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.first.len() < HTTP2_PREFACE_START.len() {
            let missing = HTTP2_PREFACE_START.len() - state.first.len();
            state.first.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        }
        let is_http2 = state.first == HTTP2_PREFACE_START;
        if is_http2 {
            // HTTP/2 frames come at any time and do not mark the start of a request.
            state.head_since = None;
        } else if state.requests == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
        }
    }

    /// Starts a request. It ends when the answer's body is dropped.
    pub(super) fn begin(self: &Arc<Self>, method: &Method) -> ActiveRequest {
        let mut state = self.state();
        state.requests += 1;
        state.next += 1;
        state.had_request = true;
        state.head_since = None;
        state.moved_at = Instant::now();
        ActiveRequest { activity: self.clone(), id: state.next, is_head: method == Method::HEAD }
    }
}

/// Why a connection may be closed to free its slot, in the order of closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evictable {
    /// The client has sent no request yet.
    NeverUsed,
    Idle,
    /// The client sends requests and does not read the answers.
    NotReading,
}

impl State {
    fn deadline(&self) -> Option<Instant> {
        match (self.requests, self.head_since, self.had_request) {
            (0, Some(since), _) => Some(since + HEAD_TIMEOUT),
            (0, None, true) => Some(self.moved_at + NEXT_REQUEST_TIMEOUT),
            (0, None, false) => Some(self.moved_at + HEAD_TIMEOUT),
            // Requests in progress have their own timeouts.
            _ => self.stalled().map(|since| since + READ_TIMEOUT),
        }
    }

    /// Since when the client has read nothing, if every request waits for it to read.
    fn stalled(&self) -> Option<Instant> {
        self.stalled_since.filter(|_| self.unread.len() == self.requests)
    }

    /// The client has read from an answer.
    fn mark_read(&mut self, id: u64) {
        if self.unread.remove(&id) {
            self.stalled_since = (!self.unread.is_empty()).then(Instant::now);
        }
    }

    /// The server has nothing to send for this request yet.
    fn mark_waiting(&mut self, id: u64) {
        self.unread.remove(&id);
        if self.unread.is_empty() {
            self.stalled_since = None;
        }
    }
}

/// A request without a complete answer.
pub(super) struct ActiveRequest {
    activity: Arc<Activity>,
    id: u64,
    is_head: bool,
}

impl ActiveRequest {
    /// Something was sent, and the client has to read it.
    fn mark_sent(&self) {
        let mut state = self.activity.state();
        state.unread.insert(self.id);
        state.stalled_since.get_or_insert_with(Instant::now);
    }

    /// Wraps the body of the answer.
    pub(super) fn track(self, body: Body) -> TrackedBody {
        // An answer without a body needs no reading.
        if !self.is_head && !body.is_end_stream() {
            self.mark_sent();
        }
        TrackedBody { body, request: self, is_started: false }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.unread.remove(&self.id);
        state.requests -= 1;
        state.moved_at = Instant::now();
        if state.requests == 0 {
            state.stalled_since = None;
        }
    }
}

/// A body that records when the client reads it.
pub(super) struct TrackedBody {
    body: Body,
    request: ActiveRequest,
    /// At least one piece was handed to the connection.
    is_started: bool,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // A poll for more means that the client has read the piece before.
        if self.is_started {
            self.request.activity.state().mark_read(self.request.id);
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled {
            Poll::Ready(Some(_)) => {
                self.is_started = true;
                self.request.mark_sent();
            }
            Poll::Ready(None) | Poll::Pending => self.request.activity.state().mark_waiting(self.request.id),
        }
        polled
    }

    /// Not at the end until it is polled once more after the last piece. Only that poll shows that an HTTP/2 client has
    /// accepted the last piece.
    fn is_end_stream(&self) -> bool {
        !self.is_started && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A TCP stream that records when bytes arrive.
pub(super) struct TrackedStream {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl TrackedStream {
    pub(super) fn new(stream: TcpStream, activity: Arc<Activity>) -> TrackedStream {
        TrackedStream { stream, activity }
    }
}

impl AsyncRead for TrackedStream {
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

impl AsyncWrite for TrackedStream {
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

/// The result of a handler. It has no error.
pub(super) type TrackedResponse = Result<axum::http::Response<TrackedBody>, Infallible>;
