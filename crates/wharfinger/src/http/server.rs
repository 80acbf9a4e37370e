//! Accepts connections until told to stop, then lets those that are open finish.

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

use super::activity::{Answer, Watched};
use super::places::{ConnectionLimits, Place, Places, TooManyOfAddress};
use crate::telemetry::metric;

/// What is under way gets this long to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// When no connection can be accepted (out of descriptors, say), the next try waits.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Requests of one connection of HTTP/2 at a time.
const STREAMS_MAX: u32 = 64;
const HEADERS_BYTES_MAX: u32 = 32 << 10;
/// A head of HTTP/1, and what is read or written of its bodies at a time.
const HTTP1_BUFFER_BYTES: usize = 64 << 10;
/// What one request of HTTP/2 may leave unread by its client.
const SEND_BUFFER_BYTES: usize = 64 << 10;

pub async fn serve(listener: TcpListener, router: Router, limits: ConnectionLimits, stop: CancellationToken) {
    let builder = builder();
    let open = GracefulShutdown::new();
    let places = Places::new(limits);
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
        let place = tokio::select! {
            place = places.take(address.ip()) => place,
            () = stop.cancelled() => break,
        };
        match place {
            Ok(place) => {
                let _ = stream.set_nodelay(true);
                let (builder, router, watcher) = (builder.clone(), router.clone(), open.watcher());
                tokio::spawn(async move {
                    let place = place;
                    let connection = connection(&builder, stream, router, &place);
                    tokio::select! {
                        // A connection that ends badly is its client's affair.
                        _ = watcher.watch(connection) => {}
                        () = place.activity.expired() => metric::connection_closed("timeout"),
                        () = place.close.cancelled() => metric::connection_closed("all_places_taken"),
                    }
                });
            }
            Err(TooManyOfAddress) => metric::connection_closed("address_limit"),
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, open.shutdown()).await.is_err() {
        tracing::warn!("some connections did not finish in time");
    }
}

/// Windows of HTTP/2 begin small and grow with what is read: a client without a token makes us hold little.
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
    place: &Place,
) -> impl hyper_util::server::graceful::GracefulConnection + 'b {
    let activity = place.activity.clone();
    let io = TokioIo::new(Watched::new(stream, activity.clone()));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let asked = activity.begin(request.method());
        let answering = router.call(request);
        async move {
            let answer = answering.await?;
            Answer::Ok(answer.map(|body| asked.answered(body)))
        }
    });
    builder.serve_connection_with_upgrades(io, service)
}
