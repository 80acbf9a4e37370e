//! Accepts connections until told to stop, then lets those that are open finish.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A client that has not sent its headers by then is not going to.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// What is under way gets this long to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// When no connection can be taken (out of descriptors, say), the next try waits.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
    let open = GracefulShutdown::new();
    loop {
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
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let watched = open.watch(connection);
        tokio::spawn(async move {
            // A connection that ends badly is its client's affair.
            let _ = watched.await;
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, open.shutdown()).await.is_err() {
        tracing::warn!("some connections did not finish in time");
    }
}
