//! Messages are not sent to private addresses, unless the operator allows it.

use wharfinger_engines::webhooks::{Endpoint, EndpointError, SendError, check_resolves};

use super::{Receiver, SECRET, message, webhook};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_name_with_a_private_address_is_refused_when_it_is_resolved() {
    let receiver = Receiver::answering(OK).await;
    let url = format!("http://localhost:{}/hook", receiver.address.port());
    assert_eq!(webhook(&url, SECRET, false).send(&message()).await, Err(SendError::PrivateAddress));
    assert!(SendError::PrivateAddress.to_string().contains("WEBHOOK_ALLOW_PRIVATE"));
    let endpoint = Endpoint::new(&url, false).expect("a name is not checked here");
    assert_eq!(check_resolves(&endpoint).await, Err(EndpointError::Private("localhost".into())));
    assert_eq!(receiver.received(), Vec::<String>::new());

    webhook(&url, SECRET, true).send(&message()).await.expect("allowed");
    assert_eq!(receiver.received().len(), 1);
    let endpoint = Endpoint::new(&url, true).expect("a name");
    assert_eq!(check_resolves(&endpoint).await, Ok(()));
}

#[tokio::test]
async fn a_literal_private_address_is_refused_immediately() {
    let receiver = Receiver::answering(OK).await;
    let error = Endpoint::new(&receiver.url(), false).expect_err("private");
    assert_eq!(error, EndpointError::Private("127.0.0.1".into()));
    assert!(!error.to_string().contains("hush"), "{error}");
}

#[tokio::test]
async fn an_unknown_name_is_reported() {
    let endpoint = Endpoint::new("https://unknown.invalid/hook", false).expect("a name");
    let error = check_resolves(&endpoint).await.expect_err("the name does not exist");
    assert!(matches!(&error, EndpointError::Unresolved(host, _) if host == "unknown.invalid"), "{error}");
    let sent = webhook("https://unknown.invalid/hook", SECRET, false).send(&message()).await;
    assert!(matches!(sent, Err(SendError::NoAnswer(_))), "{sent:?}");
}
