//! Microsoft Entra identities. The service issues a delegation key for a token, and Azurite accepts its signatures.
//! Without TLS, Azurite issues no such key, so a test server in front of it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use wharfinger_stores::azure::{AzureCredentials, AzureOptions, AzureStore, EntraOptions};
use wharfinger_stores::{BlobError, BlobStore as _, PutGrant, UrlLifetime};

use super::fixture::{LIFETIME, azure_options, key, put_signed};
use super::sending::Client;

/// The secret from which Azurite derives its delegation keys.
const BASIC_KEY: &str =
    "I17GKLvcJUossaebtsEDZZ2RJ8GNLwLH4m7hRMxbVbkx6wNIRAABj4Rtw0FBhFuEAgmbL4gFMzUw+AStz9Sqdg==";
const OBJECT: &str = "11111111-2222-3333-4444-555555555555";
const TENANT: &str = "66666666-7777-8888-9999-000000000000";
const VERSION: &str = "2023-11-03";

fn element<'a>(text: &'a str, name: &str) -> &'a str {
    let rest = text.split_once(&format!("<{name}>")).expect("an element").1;
    rest.split_once("</").expect("its end").0
}

fn delegation_key(request: &str) -> String {
    let (start, expiry) = (element(request, "Start"), element(request, "Expiry"));
    let mut mac = Hmac::<Sha256>::new_from_slice(BASIC_KEY.as_bytes()).expect("a key");
    mac.update([OBJECT, TENANT, start, expiry, "b", VERSION].join("\n").as_bytes());
    let value = STANDARD.encode(mac.finalize().into_bytes());
    format!(
        "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><UserDelegationKey><SignedOid>{OBJECT}</SignedOid>\
         <SignedTid>{TENANT}</SignedTid><SignedStart>{start}</SignedStart><SignedExpiry>{expiry}</SignedExpiry>\
         <SignedService>b</SignedService><SignedVersion>{VERSION}</SignedVersion><Value>{value}</Value>\
         </UserDelegationKey>"
    )
}

/// The number of requests for a token and for a key.
#[derive(Default)]
struct RequestCounts {
    tokens: AtomicUsize,
    keys: AtomicUsize,
}

/// A server that answers like Entra and the service, and forwards other requests to Azurite.
async fn test_server(port: u16, secret: &'static str) -> (String, Arc<RequestCounts>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let counts = Arc::new(RequestCounts::default());
    let shared = counts.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, port, secret, shared.clone()));
        }
    });
    (address, counts)
}

async fn serve(mut stream: TcpStream, port: u16, secret: &'static str, counts: Arc<RequestCounts>) {
    let mut bytes = vec![0; 64 * 1_024];
    let mut read = stream.read(&mut bytes).await.unwrap_or(0);
    if !bytes.starts_with(b"POST ") {
        let mut azurite = TcpStream::connect(("127.0.0.1", port)).await.expect("Azurite");
        azurite.write_all(&bytes[..read]).await.expect("forwarded");
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut azurite).await;
        return;
    }
    let whole = |text: &str| text.contains("</KeyInfo>") || text.contains("grant_type=");
    while !whole(&String::from_utf8_lossy(&bytes[..read])) {
        read += stream.read(&mut bytes[read..]).await.expect("the rest");
    }
    let request = String::from_utf8_lossy(&bytes[..read]).into_owned();
    let (status, body) = if request.contains("/oauth2/v2.0/token") {
        counts.tokens.fetch_add(1, Ordering::Relaxed);
        match request.contains(&format!("client_secret={secret}")) {
            true => (200, "{\"access_token\":\"a-token\",\"expires_in\":3600}".to_owned()),
            false => (401, "{\"error\":\"invalid_client\"}".to_owned()),
        }
    } else {
        counts.keys.fetch_add(1, Ordering::Relaxed);
        assert!(request.to_lowercase().contains("authorization: bearer a-token"), "{request}");
        assert!(request.contains("restype=service&comp=userdelegationkey"), "{request}");
        (200, delegation_key(&request))
    };
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("answered");
}

async fn options(secret: &'static str) -> (AzureOptions, Arc<RequestCounts>) {
    let (address, counts) = test_server(harness::azurite::shared().port(), secret).await;
    let entra = EntraOptions {
        tenant_id: Some(TENANT.into()),
        client_id: Some(OBJECT.into()),
        client_secret: Some("right".into()),
        authority_host: Some(address.clone()),
        ..EntraOptions::default()
    };
    let options = AzureOptions {
        endpoint: Some(format!("{address}/devstoreaccount1")),
        credentials: Some(AzureCredentials::Entra(entra)),
        ..azure_options()
    };
    (options, counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_signs_with_a_delegation_key() {
    let (options, counts) = options("right").await;
    let store = AzureStore::connect(&options).expect("connected");
    let probed = store.probe().await.expect("a usable store");
    assert_eq!(probed.notes, Vec::<String>::new());
    assert!(store.capabilities().create_only);
    let key = key("uploads/t/u/f");
    assert_eq!(put_signed(&Client::new(), &store, &key, b"first").await, 201);
    assert_eq!(put_signed(&Client::new(), &store, &key, b"again").await, 403);
    assert_eq!(store.head(&key, None).await.expect("present").size, 5);
    let times = (counts.tokens.load(Ordering::Relaxed), counts.keys.load(Ordering::Relaxed));
    assert_eq!(times, (1, 1), "one key is used for days");

    let grant = PutGrant { key, size: 5, content_type: None, checksum_sha256: None, lifetime: LIFETIME };
    let week = UrlLifetime { signed_at: 0, expires_at: 8 * 24 * 3_600_000 };
    let error =
        store.sign_put(&PutGrant { lifetime: week, ..grant }).await.expect_err("no key is valid so long");
    assert!(matches!(&error, BlobError::Refused(why) if why.contains("week")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_identity_is_reported() {
    let (options, counts) = options("wrong").await;
    let store = AzureStore::connect(&options).expect("connected");
    let error = store.head(&key("uploads/t/u/f"), None).await.expect_err("no token");
    assert!(matches!(error, BlobError::Unavailable(_)), "the object is not reported as absent: {error}");
    assert!(error.to_string().contains("AZURE_CLIENT_ID"), "{error}");
    assert!(!error.to_string().contains("right"), "secrets are not shown: {error}");
    assert_eq!(counts.keys.load(Ordering::Relaxed), 0);
}
