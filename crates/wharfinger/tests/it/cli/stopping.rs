//! Stopping a server: it drains, still answers requests meanwhile, and stops at once at a second signal.

use serde_json::json;

use super::program::{Place, Served};
use crate::test_app::Answer;

/// Much longer than any test waits.
const LONG_DRAIN: [(&str, &str); 1] = [("SHUTDOWN_DRAIN_MS", "3600000")];

async fn get(http: &reqwest::Client, served: &Served, path: &str) -> Answer {
    Answer::read(http.get(format!("{}{path}", served.url)).send().await.expect("an answer")).await
}

async fn until_draining(http: &reqwest::Client, served: &Served) -> Answer {
    loop {
        let answer = get(http, served, "/readyz").await;
        if answer.status == 503 {
            return answer;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_answers_requests_and_closes_connections() {
    let place = Place::new();
    let served = place.serve(&LONG_DRAIN);
    let token = place.token("t", "u", "user");
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let before = get(&http, &served, "/readyz").await;
    assert!(!before.headers.contains_key("connection"));
    assert_eq!(before.expect(200)["status"], "ready");

    served.signal("TERM");
    let draining = until_draining(&http, &served).await;
    assert_eq!(draining.headers["connection"], "close");
    assert_eq!((&draining.body["status"], &draining.body["backends"]), (&json!("draining"), &json!([])));
    get(&http, &served, "/healthz").await.expect(200);
    let init = http.post(format!("{}/api/v2/files/init", served.url)).bearer_auth(&token);
    let init = init.body(r#"{"fileName":"a","size":3}"#).send().await.expect("an answer");
    let init = Answer::read(init).await;
    assert_eq!(init.headers["connection"], "close");
    let grant = init.expect(201);
    let put = http.put(grant["uploadUrl"].as_str().expect("a URL")).body("abc").send().await;
    assert_eq!(put.expect("an answer").status(), 200);

    served.signal("TERM");
    assert!(served.wait().success(), "a second signal ends the drain");
    assert!(place.log().contains("\"message\":\"stopped\""), "the server still stopped cleanly");
}

#[test]
fn an_interrupt_stops_the_server_without_a_drain() {
    let place = Place::new();
    let served = place.serve(&LONG_DRAIN);
    served.signal("INT");
    assert!(served.wait().success());
    let log = place.log();
    assert!(log.contains("\"message\":\"stopped\"") && !log.contains("draining"), "{log}");
}
