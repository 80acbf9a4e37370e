//! Accepts connections in a thread with its own runtime, because a test's runtime ends with the test.

use std::net::{Ipv4Addr, SocketAddr};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::S3Result;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::s3_error;
use s3s::service::S3ServiceBuilder;

use crate::bucket::Buckets;
use crate::{ACCESS_KEY, REGION, SECRET_KEY};

pub(crate) fn start(buckets: Buckets) -> std::io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    std::thread::spawn(move || runtime.block_on(serve(listener, buckets)));
    Ok(address)
}

async fn serve(listener: std::net::TcpListener, buckets: Buckets) -> std::io::Result<()> {
    let mut service = S3ServiceBuilder::new(buckets);
    service.set_auth(OneKey);
    service.set_access(OneRegion);
    let service = service.build();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (socket, _) = listener.accept().await?;
        let service = service.clone();
        tokio::spawn(async move {
            let http = auto::Builder::new(TokioExecutor::new());
            // A client may disconnect at any time.
            let _ = http.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

/// Not the implementation of `s3s`, because its error for unknown keys differs from that of AWS.
struct OneKey;

#[async_trait::async_trait]
impl S3Auth for OneKey {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match access_key {
            ACCESS_KEY => Ok(SECRET_KEY.into()),
            _ => Err(s3_error!(InvalidAccessKeyId, "The key does not exist in our records")),
        }
    }
}

/// `s3s` verifies the signature for the region that the request names. This checks that it is the server's region.
struct OneRegion;

#[async_trait::async_trait]
impl S3Access for OneRegion {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "Signature is required"));
        }
        let in_header = context.headers().get("authorization").and_then(|value| value.to_str().ok());
        let scope = in_header.or_else(|| context.uri().query()).unwrap_or_default().replace("%2F", "/");
        if scope.contains(&format!("/{REGION}/s3/aws4_request")) {
            return Ok(());
        }
        Err(s3_error!(
            AuthorizationHeaderMalformed,
            "The authorization header is malformed; the region is wrong; expecting '{REGION}'"
        ))
    }
}
