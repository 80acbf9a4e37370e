//! Stopping a server: it asks to be left, serves on meanwhile, and does not make those wait who say it twice.

use serde_json::json;

use super::program::{Place, Served};
use crate::test_app::Answer;

/// Far longer than any test waits.
const LONG: [(&str, &str); 1] = [("SHUTDOWN_DRAIN_MS", "3600000")];

async fn ask(http: &reqwest::Client, served: &Served, path: &str) -> Answer {
    Answer::read(http.get(format!("{}{path}", served.url)).send().await.expect("an answer")).await
}

async fn until_draining(http: &reqwest::Client, served: &Served) -> Answer {
    loop {
        let answer = ask(http, served, "/readyz").await;
        if answer.status == 503 {
            return answer;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drains_serves_on_and_ends_each_connection() {
    let place = Place::new();
    let served = place.serve(&LONG);
    let token = place.token("t", "u", "user");
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let before = ask(&http, &served, "/readyz").await;
    assert!(!before.headers.contains_key("connection"));
    assert_eq!(before.expect(200)["status"], "ready");

    served.signal("TERM");
    let draining = until_draining(&http, &served).await;
    assert_eq!(draining.headers["connection"], "close");
    assert_eq!((&draining.body["status"], &draining.body["backends"]), (&json!("draining"), &json!([])));
    ask(&http, &served, "/healthz").await.expect(200);
    let init = http.post(format!("{}/api/v2/files/init", served.url)).bearer_auth(&token);
    let init = init.body(r#"{"fileName":"a","size":3}"#).send().await.expect("an answer");
    let init = Answer::read(init).await;
    assert_eq!(init.headers["connection"], "close");
    let grant = init.expect(201);
    let put = http.put(grant["uploadUrl"].as_str().expect("a URL")).body("abc").send().await;
    assert_eq!(put.expect("an answer").status(), 200);

    served.signal("TERM");
    assert!(served.wait().success(), "whoever says it twice does not wait");
    assert!(place.log().contains("\"message\":\"stopped\""), "it ended in order all the same");
}

#[test]
fn a_person_at_a_terminal_does_not_wait_for_a_load_balancer() {
    let place = Place::new();
    let served = place.serve(&LONG);
    served.signal("INT");
    assert!(served.wait().success());
    let log = place.log();
    assert!(log.contains("\"message\":\"stopped\"") && !log.contains("draining"), "{log}");
}
