//! `wharfinger token`: tokens that the server accepts.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::program::Place;

fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).expect("base64")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_accepts_a_token_with_its_tenant_and_role() {
    let place = Place::new();
    let served = place.serve(&[]);
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let get = async |token: &str, path: &str| {
        let request = http.get(format!("{}{path}", served.url)).bearer_auth(token);
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("text");
        (status, serde_json::from_str::<Value>(&text).unwrap_or_default())
    };
    let token = place.run(&["token", "--tenant", "acme", "--user", "jane doe"]).expect(0).stdout;
    let (status, quota) = get(token.trim(), "/api/v2/quota").await;
    assert_eq!((status, &quota["tenant"]), (200, &Value::from("acme")));
    let admin_path = "/api/v1/maintenance/cleanup/status";
    assert_eq!(get(token.trim(), admin_path).await.0, 403);
    for (role, status) in [("user", 403), ("admin", 200), ("operator", 200), ("worker", 403)] {
        assert_eq!(get(&place.token("acme", "u", role), admin_path).await.0, status, "{role}");
    }
    assert!(served.terminate().success());
}

#[test]
fn a_token_has_its_claims_and_its_expiry() {
    let place = Place::new();
    let ran =
        place.run(&["token", "--tenant", "t", "--user", "u", "--role", "admin", "--expires", "2d", "--json"]);
    let [answer] = &ran.expect(0).json()[..] else { panic!("one line") };
    let claims = claims(answer["token"].as_str().expect("a token"));
    assert_eq!(
        (&claims["sub"], &claims["tenant"], &claims["role"]),
        (&"u".into(), &"t".into(), &"admin".into())
    );
    let expires = answer["expiresAt"].as_str().expect("a time");
    let expires = chrono::DateTime::parse_from_rfc3339(expires).expect("RFC 3339").timestamp();
    assert_eq!(claims["exp"].as_i64(), Some(expires));
    let two_days = expires - wharfinger::clock::Clock::system().now() / 1_000;
    assert!((172_000..=172_800).contains(&two_days), "{two_days}");
}

#[test]
fn wrong_usage_exits_with_code_2() {
    let place = Place::new();
    for arguments in [
        &["token"][..],
        &["token", "--tenant", "t"],
        &["token", "--tenant", "t", "--user", "u", "--role", "root"],
        &["token", "--tenant", "t", "--user", "u", "--expires", "never"],
        &["token", "--tenant", "t", "--user", "u", "--expires", "0s"],
        &["token", "--tenant", "", "--user", "u"],
        &["token", "--tenant", "t", "--user", "a\nb"],
        &["unknown"],
        &["serve", "--colour", "blue"],
        &[],
    ] {
        let ran = place.run(arguments).expect(2);
        assert!(!ran.stderr.is_empty(), "{arguments:?}");
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
    for arguments in [["--help"], ["--version"]] {
        assert!(!place.run(&arguments).expect(0).stdout.is_empty());
    }
}

#[test]
fn with_a_jwks_and_no_secret_no_token_is_created() {
    let place = Place::new();
    let keys = place.write("jwks.json", r#"{"keys":[]}"#);
    let environment = [
        ("WHARFINGER_DATABASE_URL", "postgres://unknown@127.0.0.1:1/none"),
        ("WHARFINGER_JWKS_URL", "http://127.0.0.1:1/keys"),
    ];
    let ran = place.run_with(&environment, &["token", "--tenant", "t", "--user", "u"]).expect(1);
    assert!(ran.stderr.contains("WHARFINGER_JWT_SECRET"), "{ran:?}");
    let environment = [("WHARFINGER_JWKS_FILE", keys.to_str().expect("UTF-8"))];
    let ran = place.run_with(&environment, &["token", "--tenant", "t", "--user", "u"]);
    ran.expect_usage("WHARFINGER_JWKS_FILE");
}
