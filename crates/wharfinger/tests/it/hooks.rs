//! Uploads that the store reports are confirmed, although their client disappeared.

use axum::Router;
use axum::routing::any;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use reqwest::header;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wharfinger::core::Role;

use crate::http::signing_keys::{RSA, jwks};
use crate::oracle;
use crate::test_app::{Answer, Client, Database, METRICS, START, TestApp, TestEnv, on_each_database};
use crate::uploads::{id, sha256};

pub const SECRET: &str = "a hook secret of some bytes";
const PATH: &str = "/hooks/object-created";
const BYTES: &[u8] = b"bytes of a client that disappears";

pub const WITH_SECRET: (&str, &str) = ("WHARFINGER_HOOK_SECRET", SECRET);

fn bucket(env: &TestEnv) -> String {
    let url = env.environment().find(|(name, _)| *name == "WHARFINGER_BLOB_URL").expect("a remote store").1;
    url.split('/').nth(2).expect("a bucket").to_owned()
}

/// The message of S3 about one object. Keys are encoded in it.
pub fn s3_event(env: &TestEnv, key: &str) -> Value {
    let encoded = key.replace('%', "%25").replace('+', "%2B").replace(' ', "+");
    json!({ "Records": [{ "eventSource": "aws:s3", "eventName": "ObjectCreated:Put",
        "s3": { "bucket": { "name": bucket(env) }, "object": { "key": encoded } } }] })
}

pub async fn report(server: &TestApp, message: &Value) -> Answer {
    let request = server.http.post(format!("{}{PATH}", server.url)).bearer_auth(SECRET);
    Answer::read(request.body(message.to_string()).send().await.expect("an answer")).await
}

fn counts(answer: &Value) -> Value {
    json!([answer["confirmed"], answer["repeated"], answer["refused"], answer["unknown"], answer["failed"]])
}

/// Announced and uploaded, but not confirmed.
async fn uploaded(me: &Client<'_>, bytes: &[u8], checksum: Option<String>) -> String {
    let body = json!({ "fileName": "a", "size": bytes.len(), "checksumSha256": checksum });
    let grant = me.post("/api/v2/files/init", body).await.expect(201);
    let put = me.server.put_bytes(&grant, bytes).await;
    assert!(put.status.is_success(), "{}", put.body);
    id(&grant)
}

async fn a_reported_upload_is_confirmed_once(database: Database) {
    wharfinger::telemetry::prometheus();
    let env = TestEnv::on_s3(database, &[WITH_SECRET]);
    let server = env.start().await;
    // The key of this user has percent signs.
    let me = server.as_user("t+1", "a/b c", Role::User);
    let key = |id: &str| format!("wharf/uploads/t%2B1/a%2Fb%20c/{id}");
    let file = uploaded(&me, BYTES, None).await;
    let message = s3_event(&env, &key(&file));
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([1, 0, 0, 0, 0]));
    assert_eq!(me.file(&file).await["status"], "ready");
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([0, 1, 0, 0, 0]));
    me.confirm(&file).await.expect(200);
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    assert_eq!(history["events"][1]["actor"], "hook");

    // Nothing of these is confirmed, and each stays as it was.
    let missing = id(&me.init("b", 3).await.expect(201));
    let other_bytes = uploaded(&me, BYTES, Some(sha256(b"other bytes"))).await;
    let deleted = uploaded(&me, BYTES, None).await;
    me.delete(&format!("/api/v2/files/{deleted}")).await.expect(204);
    let mut message = s3_event(&env, &key(&missing));
    for (key, bucket) in [
        (key(&other_bytes), None),
        (key(&deleted), None),
        (key("018f4e6e-7f3a-7000-8000-000000000001"), None),
        (format!("wharf/uploads/other/{missing}"), None),
        (format!("elsewhere/{}", key(&missing)), None),
        ("wharf/notes.txt".into(), None),
        (key(&missing), Some("another-bucket")),
    ] {
        let mut record = s3_event(&env, &key)["Records"][0].clone();
        if let Some(bucket) = bucket {
            record["s3"]["bucket"]["name"] = bucket.into();
        }
        message["Records"].as_array_mut().expect("a list").push(record);
    }
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([0, 0, 3, 5, 0]));
    for id in [&missing, &other_bytes] {
        assert_eq!(me.file(id).await["status"], "registered");
    }
    let metrics = {
        let _guard = METRICS.lock().await;
        server.metrics().await
    };
    assert!(metrics.contains("wharfinger_hook_objects_total{outcome=\"confirmed\"}"), "{metrics}");
    env.advance(2 * 3_600_000);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(a_reported_upload_is_confirmed_once);

/// One object whose row cannot be read does not keep the others from being confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_row_does_not_stop_the_others() {
    let env = TestEnv::on_s3(Database::Sqlite, &[WITH_SECRET]);
    let server = env.start().await;
    let me = server.me();
    let bad = uploaded(&me, BYTES, None).await;
    env.advance(1);
    let good = uploaded(&me, BYTES, None).await;
    env.execute("UPDATE files SET stage = 'unknown' WHERE id = (SELECT MIN(id) FROM files)").await;
    let mut message = s3_event(&env, &format!("wharf/uploads/t/u/{bad}"));
    let record = s3_event(&env, &format!("wharf/uploads/t/u/{good}"))["Records"][0].clone();
    message["Records"].as_array_mut().expect("a list").push(record);
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([1, 0, 0, 0, 1]));
    assert_eq!(me.file(&good).await["status"], "ready");
}

/// The gateway sends its own notifications to the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_gateway_reports_its_objects() {
    let env = TestEnv::on_s3(Database::Sqlite, &[WITH_SECRET]);
    let server = env.start().await;
    let (me, gateway, bucket) = (server.me(), harness::radosgw::shared(), bucket(&env));
    let endpoint = format!("{}{PATH}?token={}", server.url, SECRET.replace(' ', "%20"));
    let encode = |text: &str| {
        text.replace('%', "%25")
            .replace(':', "%3A")
            .replace('/', "%2F")
            .replace('?', "%3F")
            .replace('=', "%3D")
    };
    let topic = format!(
        "Action=CreateTopic&Name={bucket}&Attributes.entry.1.key=push-endpoint&Attributes.entry.1.value={}",
        encode(&endpoint)
    );
    let created = gateway.request("POST", "/", topic.as_bytes()).expect("a topic");
    assert_eq!(created.status, 200, "{}", String::from_utf8_lossy(&created.body));
    let arn = format!("arn:aws:sns:default::{bucket}");
    let rule = format!(
        "<NotificationConfiguration><TopicConfiguration><Id>wharfinger</Id><Topic>{arn}</Topic>\
         <Event>s3:ObjectCreated:*</Event></TopicConfiguration></NotificationConfiguration>"
    );
    let set = gateway.request("PUT", &format!("/{bucket}?notification="), rule.as_bytes()).expect("a rule");
    assert_eq!(set.status, 200, "{}", String::from_utf8_lossy(&set.body));

    // The gateway waits for the answer of the hook before it answers the upload.
    let file = uploaded(&me, BYTES, None).await;
    assert_eq!(me.file(&file).await["status"], "ready");
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    assert_eq!(history["events"][1]["reason"], "confirmed: the store reported the object");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_is_needed_and_accepted_in_three_places() {
    let without = TestEnv::new(Database::Sqlite).start().await;
    let answer = report(&without, &json!({ "Records": [] })).await;
    let problem = answer.expect_problem(404, "not_found");
    assert!(problem["detail"].as_str().expect("a text").contains("WHARFINGER_HOOK_SECRET"), "{problem}");

    let server = TestEnv::with(Database::Sqlite, &[WITH_SECRET]).start().await;
    let post = |query: &str| server.http.post(format!("{}{PATH}{query}", server.url));
    let empty = json!({ "Records": [] }).to_string();
    let ours = server.token("t", "u", Role::Operator);
    for request in [
        post(""),
        post("?token=wrong"),
        post("").bearer_auth("wrong"),
        post("").bearer_auth(&SECRET[1..]),
        post("").basic_auth("any", Some("wrong")),
        post("").basic_auth(SECRET, Some("")),
        post("").bearer_auth(ours),
    ] {
        let answer = request.body(empty.clone()).send().await.expect("an answer");
        let challenges: Vec<_> = answer.headers().get_all(header::WWW_AUTHENTICATE).iter().collect();
        assert_eq!(challenges, ["Bearer", "Basic realm=\"wharfinger hooks\""], "SNS needs the second one");
        Answer::read(answer).await.expect_problem(401, "unauthorized");
    }
    for request in [
        post("").bearer_auth(SECRET),
        post("").basic_auth("any", Some(SECRET)),
        post("").query(&[("token", SECRET)]),
    ] {
        let answer = request.body(empty.clone()).send().await.expect("an answer");
        assert_eq!(counts(&Answer::read(answer).await.expect(200)), json!([0, 0, 0, 0, 0]));
    }
    for bad in ["", "[1]", "7", "not JSON", "{}"] {
        let answer = post("").bearer_auth(SECRET).body(bad).send().await.expect("an answer");
        Answer::read(answer).await.expect_problem(400, "invalid_request");
    }
    let large = " ".repeat((2 << 20) + 1);
    let answer = post("").bearer_auth(SECRET).body(large).send().await.expect("an answer");
    Answer::read(answer).await.expect_problem(413, "too_large");
    let other = server.http.get(format!("{}{PATH}", server.url)).send().await.expect("an answer");
    Answer::read(other).await.expect_problem(405, "method_not_allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_event_grid_subscribes_and_reports() {
    let env = TestEnv::on_azure(Database::Sqlite, &[WITH_SECRET]);
    let server = env.start().await;
    let me = server.me();
    let validation = json!([{ "id": "1", "topic": "t", "subject": "", "eventTime": "2026-11-19T00:00:00Z",
        "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent", "dataVersion": "1",
        "data": { "validationCode": "512d38b6", "validationUrl": "https://example.com" } }]);
    assert_eq!(report(&server, &validation).await.expect(200)["validationResponse"], "512d38b6");
    // The handshake of the CloudEvents schema.
    let options = || {
        let url = format!("{}{PATH}", server.url);
        server
            .http
            .request(reqwest::Method::OPTIONS, url)
            .header("webhook-request-origin", "eventgrid.azure.net")
    };
    let answer = options().query(&[("token", SECRET)]).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["webhook-allowed-origin"], "eventgrid.azure.net");
    assert_eq!(options().send().await.expect("an answer").status(), 401);

    let event = |kind: &str, file: &str| {
        let subject =
            format!("/blobServices/default/containers/{}/blobs/wharf/uploads/t/u/{file}", bucket(&env));
        json!({ "id": "1", kind: "Microsoft.Storage.BlobCreated", "subject": subject, "data": {} })
    };
    let file = uploaded(&me, BYTES, None).await;
    let message = json!([event("eventType", &file)]);
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([1, 0, 0, 0, 0]));
    let file = uploaded(&me, BYTES, None).await;
    let mut message = event("type", &file);
    message["specversion"] = "1.0".into();
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([1, 0, 0, 0, 0]));
    assert_eq!(me.file(&file).await["status"], "ready");
}

/// The text that SNS signs, with its names in this order.
fn sns_message(url: &str, kind: &str, message: &str) -> Value {
    let mut all = vec![("Message", message.to_owned()), ("MessageId", "1".to_owned())];
    if kind == "SubscriptionConfirmation" {
        all.push(("SubscribeURL", format!("{url}/?Action=ConfirmSubscription")));
    }
    all.push(("Timestamp", "2026-11-19T00:00:00.000Z".to_owned()));
    if kind == "SubscriptionConfirmation" {
        all.push(("Token", "token".to_owned()));
    }
    all.extend([("TopicArn", "arn:aws:sns:x:1:t".to_owned()), ("Type", kind.to_owned())]);
    let text: String = all.iter().map(|(name, value)| format!("{name}\n{value}\n")).collect();
    let key = include_bytes!("../../../wharfinger-engines/src/object_events/testdata/key.pem");
    let key = EncodingKey::from_rsa_pem(key).expect("a key");
    let signature = crypto::sign(text.as_bytes(), &key, Algorithm::RS256).expect("a signature");
    let padded = signature.replace('-', "+").replace('_', "/") + "==";
    let mut signed: serde_json::Map<String, Value> =
        all.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    signed.insert("SignatureVersion".into(), "2".into());
    signed.insert("Signature".into(), padded.into());
    signed.insert("SigningCertURL".into(), format!("{url}/certificate.pem").into());
    signed.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_sns_are_verified() {
    // Stands in for the endpoint of SNS, which serves its certificate and confirms subscriptions.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let requests = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = requests.clone();
    let answer = async move |request: axum::extract::Request| {
        seen.lock().expect("not poisoned").push(request.uri().to_string());
        include_str!("../../../wharfinger-engines/src/object_events/testdata/certificate.pem")
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(any(answer))).await });

    let env = TestEnv::on_s3(Database::Sqlite, &[WITH_SECRET, ("HOOK_SNS_ENDPOINT", &url)]);
    let server = env.start().await;
    let me = server.me();
    let subscription = sns_message(&url, "SubscriptionConfirmation", "Please confirm.");
    report(&server, &subscription).await.expect(200);
    assert_eq!(*requests.lock().expect("not poisoned"), ["/certificate.pem", "/?Action=ConfirmSubscription"]);
    let file = uploaded(&me, BYTES, None).await;
    let event = s3_event(&env, &format!("wharf/uploads/t/u/{file}")).to_string();
    let mut forged = sns_message(&url, "Notification", "{}");
    forged["Message"] = event.clone().into();
    report(&server, &forged).await.expect_problem(403, "forbidden");
    let mut elsewhere = sns_message(&url, "Notification", &event);
    elsewhere["SigningCertURL"] = "http://127.0.0.1:1/certificate.pem".into();
    report(&server, &elsewhere).await.expect_problem(403, "forbidden");
    assert_eq!(me.file(&file).await["status"], "registered");
    let message = sns_message(&url, "Notification", &event);
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([1, 0, 0, 0, 0]));
    let test_event = json!({ "Service": "Amazon S3", "Event": "s3:TestEvent" }).to_string();
    let message = sns_message(&url, "Notification", &test_event);
    assert_eq!(counts(&report(&server, &message).await.expect(200)), json!([0, 0, 0, 0, 0]));
    assert_eq!(requests.lock().expect("not poisoned").len(), 2, "the certificate is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn pub_sub_sends_tokens_of_google() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/certs", listener.local_addr().expect("bound"));
    let keys = jwks(&[RSA.public(Some("k1"))]).to_string();
    tokio::spawn(async move {
        axum::serve(listener, Router::new().fallback(any(async move || keys.clone()))).await
    });
    let account = "push@project.iam.gserviceaccount.com";
    let settings = [
        ("HOOK_PUBSUB_AUDIENCE", "https://files.example.com"),
        ("HOOK_PUBSUB_SERVICE_ACCOUNT", account),
        ("HOOK_PUBSUB_KEYS_URL", &url),
    ];
    let server = TestEnv::with(Database::Sqlite, &settings).start().await;
    let claims = json!({ "iss": "https://accounts.google.com", "aud": "https://files.example.com",
        "email": account, "email_verified": true, "sub": "1", "exp": START / 1_000 + 600 });
    let push = json!({ "message": { "attributes": { "eventType": "OBJECT_FINALIZE", "bucketId": "b",
        "objectId": "k" } } });
    let send = async |claims: &Value| {
        let token = RSA.token(Some("k1"), claims);
        let request = server.http.post(format!("{}{PATH}", server.url)).bearer_auth(token);
        Answer::read(request.json(&push).send().await.expect("an answer")).await
    };
    assert_eq!(counts(&send(&claims).await.expect(200)), json!([0, 0, 0, 1, 0]));
    for (claim, wrong) in [
        ("iss", json!("https://evil.example.com")),
        ("aud", json!("https://other.example.com")),
        ("email", json!("other@project.iam.gserviceaccount.com")),
        ("email_verified", json!(false)),
        ("exp", json!(START / 1_000 - 1)),
    ] {
        let mut changed = claims.clone();
        changed[claim] = wrong;
        send(&changed).await.expect_problem(401, "unauthorized");
    }
}
