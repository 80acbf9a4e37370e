//! Accepts connections until told to stop, then lets those that are open finish.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// More wait in the system's own queue.
const CONNECTIONS_MAX: usize = 10_000;
/// A client that has not said anything by then is not going to.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection is kept for the next request, and how long its headers may take, for hyper has one limit for both.
/// Longer than proxies and clients keep theirs (Caddy for two minutes, others for less): else they would send requests
/// into what is just being closed, and never learn whether they were heard.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_secs(180);
/// What is under way gets this long to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// When no connection can be taken (out of descriptors, say), the next try waits.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(NEXT_REQUEST_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
    let open = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (builder, router, watcher) = (builder.clone(), router.clone(), open.watcher());
        let stop = stop.clone();
        tokio::spawn(async move {
            let _place = place;
            // The header timeout begins with the first byte; a client that never sends one is gone.
            let mut first = [0];
            let spoke = tokio::select! {
                spoke = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)) => matches!(spoke, Ok(Ok(1))),
                () = stop.cancelled() => false,
            };
            if spoke {
                let service = TowerToHyperService::new(router);
                let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
                // A connection that ends badly is its client's affair.
                let _ = watcher.watch(connection).await;
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, open.shutdown()).await.is_err() {
        tracing::warn!("some connections did not finish in time");
    }
}
