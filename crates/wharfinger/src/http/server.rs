//! Accepts connections until the process stops, then waits some time for the open ones to finish.

use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::activity::{TrackedResponse, TrackedStream};
use super::connection_slots::{AddressLimitReached, ConnectionLimits, ConnectionSlot, ConnectionSlots};
use crate::telemetry::metric;

/// How long open connections have to finish when the process stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The wait after a failed accept, for example when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Concurrent requests of one HTTP/2 connection.
const STREAMS_MAX: u32 = 64;
const HEADERS_BYTES_MAX: u32 = 32 << 10;
/// The largest head of an HTTP/1 request, and the size of one read or write of a body.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// How many unread bytes are buffered for one HTTP/2 request.
const SEND_BUFFER_BYTES: usize = 64 << 10;

pub async fn serve(listener: TcpListener, router: Router, limits: ConnectionLimits, stop: CancellationToken) {
    let builder = builder();
    let open = GracefulShutdown::new();
    let slots = ConnectionSlots::new(limits);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(error = %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let slot = tokio::select! {
            slot = slots.take(address.ip()) => slot,
            () = stop.cancelled() => break,
        };
        match slot {
            Ok(slot) => {
                let _ = stream.set_nodelay(true);
                let (builder, router, watcher) = (builder.clone(), router.clone(), open.watcher());
                tokio::spawn(async move {
                    let slot = slot;
                    let connection = connection(&builder, stream, router, &slot);
                    tokio::select! {
                        // Errors of a connection usually come from its client, so they are not logged.
                        _ = watcher.watch(connection) => {}
                        () = slot.activity.expired() => metric::connection_closed("timeout"),
                        () = slot.close.cancelled() => metric::connection_closed("all_places_taken"),
                    }
                });
            }
            Err(AddressLimitReached) => metric::connection_closed("address_limit"),
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, open.shutdown()).await.is_err() {
        tracing::warn!(
            timeoutMs = DRAIN_TIMEOUT.as_millis(),
            "open connections closed after the drain timeout"
        );
    }
}

/// HTTP/2 windows start small and grow with what is read, so that a client without a token can fill only little memory.
fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HTTP1_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .adaptive_window(true)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES);
    builder
}

fn connection<'b>(
    builder: &'b auto::Builder<TokioExecutor>,
    stream: TcpStream,
    router: Router,
    slot: &ConnectionSlot,
) -> impl hyper_util::server::graceful::GracefulConnection + 'b {
    let activity = slot.activity.clone();
    let io = TokioIo::new(TrackedStream::new(stream, activity.clone()));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let active = activity.begin(request.method());
        let answering = router.call(request);
        async move {
            let answer = answering.await?;
            TrackedResponse::Ok(answer.map(|body| active.track(body)))
        }
    });
    builder.serve_connection_with_upgrades(io, service)
}
