//! What is not on the Internet is not sent to, by whatever name, unless the operator says so.

use wharfinger_engines::webhooks::{Endpoint, EndpointError, SendError, check_resolves};

use super::{Receiver, SECRET, message, webhook};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_name_that_leads_home_is_refused_when_it_is_resolved() {
    let receiver = Receiver::answering(OK).await;
    let url = format!("http://localhost:{}/hook", receiver.address.port());
    assert_eq!(webhook(&url, SECRET, false).send(&message()).await, Err(SendError::PrivateAddress));
    assert!(SendError::PrivateAddress.to_string().contains("WEBHOOK_ALLOW_PRIVATE"));
    let endpoint = Endpoint::new(&url, false).expect("a name says nothing");
    assert_eq!(check_resolves(&endpoint).await, Err(EndpointError::Private("localhost".into())));
    assert_eq!(receiver.got(), Vec::<String>::new());

    webhook(&url, SECRET, true).send(&message()).await.expect("allowed");
    assert_eq!(receiver.got().len(), 1);
    let endpoint = Endpoint::new(&url, true).expect("a name");
    assert_eq!(check_resolves(&endpoint).await, Ok(()));
}

#[tokio::test]
async fn an_address_that_is_written_out_is_refused_at_once() {
    let receiver = Receiver::answering(OK).await;
    let error = Endpoint::new(&receiver.url(), false).expect_err("private");
    assert_eq!(error, EndpointError::Private("127.0.0.1".into()));
    assert!(!error.to_string().contains("hush"), "{error}");
}

#[tokio::test]
async fn a_name_that_nobody_has_is_said_to_be_so() {
    let endpoint = Endpoint::new("https://nobody.invalid/hook", false).expect("a name");
    let error = check_resolves(&endpoint).await.expect_err("nobody");
    assert!(matches!(&error, EndpointError::Unresolved(host, _) if host == "nobody.invalid"), "{error}");
    let sent = webhook("https://nobody.invalid/hook", SECRET, false).send(&message()).await;
    assert!(matches!(sent, Err(SendError::NoAnswer(_))), "{sent:?}");
}
