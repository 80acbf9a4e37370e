//! Messages follow Standard Webhooks: id, time and signatures are headers, and the body is exactly the signed body.

use super::{NOW, Receiver, SECRET, message, webhook};

const OK: &str = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";

fn header<'a>(request: &'a str, name: &str) -> &'a str {
    let lines = request.lines().take_while(|line| !line.is_empty());
    let mut values = lines.filter_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    });
    let value = values.next().unwrap_or_else(|| panic!("{name} in {request}"));
    assert_eq!(values.next(), None, "{name} is sent once");
    value
}

#[tokio::test]
async fn a_message_has_its_id_time_and_signature_as_headers() {
    let receiver = Receiver::answering(OK).await;
    receiver.webhook().send(&message()).await.expect("delivered");
    let [request] = &receiver.received()[..] else { panic!("one request") };
    assert!(request.starts_with("POST /hook?token=hush HTTP/1.1\r\n"), "{request}");
    assert_eq!(header(request, "webhook-id"), message().id.to_string());
    assert_eq!(header(request, "webhook-timestamp"), NOW.to_string());
    assert_eq!(header(request, "content-type"), "application/json");
    assert!(header(request, "user-agent").starts_with("wharfinger/"));
    assert!(request.ends_with(&format!("\r\n\r\n{}", message().body)), "{request}");
    let signature = header(request, "webhook-signature");
    // Computed with Python's hmac from the secret, the id, the time and the body.
    assert_eq!(signature, "v1,ajbD84APpT9IZJPwmZztK12D/fiWCKAu2GxOLouaFuQ=");
    assert!(!request.contains("MfKQ"), "the secret is not sent");
}

#[tokio::test]
async fn during_a_rotation_both_secrets_sign() {
    let receiver = Receiver::answering(OK).await;
    let old = receiver.webhook();
    old.send(&message()).await.expect("delivered");
    let new = format!("whsec_{}", "Ab12".repeat(8));
    webhook(&receiver.url(), &format!("{new} {SECRET}"), true).send(&message()).await.expect("delivered");
    let [before, during] = &receiver.received()[..] else { panic!("two requests") };
    let signatures: Vec<&str> = header(during, "webhook-signature").split(' ').collect();
    assert_eq!(signatures.len(), 2);
    assert_eq!(signatures[1], header(before, "webhook-signature"));
    assert!(signatures.iter().all(|signature| signature.starts_with("v1,")), "{signatures:?}");
}
