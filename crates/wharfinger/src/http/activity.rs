//! What a connection is doing, and how long it may go on like that: a client that sends no request, or half of one, or
//! does not read its answer, must not hold a place for ever.

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

/// From the connection, or the first byte of a request, to the end of its head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection is kept for the next request. Longer than proxies and clients keep theirs (Caddy for two minutes,
/// others for less): else they would send requests into what is just being closed, and never learn whether they were
/// heard.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_secs(180);
/// How long a client may leave the next piece of an answer unread.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// When all places are taken, a client that has left all its answers unread for this long makes room. One that downloads
/// something large reads far more often.
const UNREAD_MAKES_ROOM: Duration = Duration::from_secs(5);
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
    next: u64,
    /// Answers of which the client has to read before more is sent.
    unread: BTreeSet<u64>,
    /// Since when the client has read nothing, while there was something to read. A request that is taken back is not read, so
    /// that a client cannot renew this by new requests. One that reads any of its answers may leave others for later: behind a
    /// proxy they are other people's.
    stalled_since: Option<Instant>,
    /// When the last request began or ended.
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
            next: 0,
            unread: BTreeSet::new(),
            stalled_since: None,
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

    /// Whether the connection may be closed because others need its place, and how soon: the lowest first. None while there
    /// is a request that waits for us, or an answer that is being read.
    pub(super) fn makes_room(&self) -> Option<(Holds, Instant)> {
        let state = self.state();
        if state.requests == 0 {
            let holds = if state.has_asked { Holds::Idle } else { Holds::Nothing };
            return Some((holds, state.moved_at));
        }
        let since = state.stalled()?;
        (since.elapsed() >= UNREAD_MAKES_ROOM).then_some((Holds::Unread, since))
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
    pub(super) fn begin(self: &Arc<Self>, method: &Method) -> Asked {
        let mut state = self.state();
        state.requests += 1;
        state.next += 1;
        state.has_asked = true;
        state.head_since = None;
        state.moved_at = Instant::now();
        Asked { activity: self.clone(), id: state.next, is_head: method == Method::HEAD }
    }
}

/// What a client holds that could make room for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holds {
    /// It never asked for anything.
    Nothing,
    Idle,
    /// It asks, and reads no answer.
    Unread,
}

impl State {
    fn deadline(&self) -> Option<Instant> {
        match (self.requests, self.head_since, self.has_asked) {
            (0, Some(since), _) => Some(since + HEAD_TIMEOUT),
            (0, None, true) => Some(self.moved_at + NEXT_REQUEST_TIMEOUT),
            (0, None, false) => Some(self.moved_at + HEAD_TIMEOUT),
            // What is worked on has limits of its own.
            _ => self.stalled().map(|since| since + READ_TIMEOUT),
        }
    }

    /// Since when the client has read nothing, if nothing else is to be done for it.
    fn stalled(&self) -> Option<Instant> {
        self.stalled_since.filter(|_| self.unread.len() == self.requests)
    }

    /// The client has read something.
    fn has_read(&mut self, id: u64) {
        if self.unread.remove(&id) {
            self.stalled_since = (!self.unread.is_empty()).then(Instant::now);
        }
    }

    /// The client waits for us.
    fn waits(&mut self, id: u64) {
        self.unread.remove(&id);
        if self.unread.is_empty() {
            self.stalled_since = None;
        }
    }
}

/// A request that is not wholly answered.
pub(super) struct Asked {
    activity: Arc<Activity>,
    id: u64,
    is_head: bool,
}

impl Asked {
    /// The client has to read before more is sent.
    fn is_sent(&self) {
        let mut state = self.activity.state();
        state.unread.insert(self.id);
        state.stalled_since.get_or_insert_with(Instant::now);
    }

    /// The body of its answer.
    pub(super) fn answered(self, body: Body) -> Answered {
        // Of an answer without a body there is nothing to wait for.
        if !self.is_head && !body.is_end_stream() {
            self.is_sent();
        }
        Answered { body, asked: self, is_begun: false }
    }
}

impl Drop for Asked {
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

/// A body that notes when it is read.
pub(super) struct Answered {
    body: Body,
    asked: Asked,
    /// A piece of it was handed over.
    is_begun: bool,
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Asked for more: what was sent before has been taken. The first time nothing was.
        if self.is_begun {
            self.asked.activity.state().has_read(self.asked.id);
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled {
            Poll::Ready(Some(_)) => {
                self.is_begun = true;
                self.asked.is_sent();
            }
            Poll::Ready(None) | Poll::Pending => self.asked.activity.state().waits(self.asked.id),
        }
        polled
    }

    /// By HTTP/2 the last piece, too, waits until the client lets it come. Only a body that is asked once more after it tells
    /// that it has come.
    fn is_end_stream(&self) -> bool {
        !self.is_begun && self.body.is_end_stream()
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
