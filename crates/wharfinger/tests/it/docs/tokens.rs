//! `docs/tokens/`: with the settings of each page, a token with its claims uploads a file.

use std::path::Path;
use std::process::Command;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::http::signing_keys::{RSA, elliptic, jwks};
use crate::test_app::{Client, Database, START, TestEnv};

/// A token as a page shows it, the settings for it, and who its caller is.
#[derive(Default, Clone)]
struct Example {
    header: Value,
    claims: Value,
    settings: Vec<(&'static str, String)>,
}

fn page(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tokens");
    std::fs::read_to_string(folder.join(name)).expect("a page")
}

/// The blocks of code of a page: their language and text.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let parts = page.split("```").skip(1).step_by(2);
    parts.map(|block| block.split_once('\n').expect("a language")).collect()
}

/// Each example of a page ends with its caller.
fn examples(page: &str) -> Vec<(Example, Value)> {
    let (mut found, mut example) = (Vec::new(), Example::default());
    for (language, text) in blocks(page) {
        match language {
            "ini" => {
                let lines = text.lines().map(|line| line.split_once('=').expect("NAME=value"));
                // Settings are named by constants elsewhere; here they live as long as the test.
                let named = lines.map(|(name, value)| (&*name.to_owned().leak(), value.to_owned()));
                example.settings = named.collect();
            }
            "json" => {
                let value: Value = serde_json::from_str(text).expect("JSON");
                if value.get("alg").is_some() {
                    example.header = value;
                } else if value.get("exp").is_some() {
                    example.claims = value;
                } else {
                    found.push((example.clone(), value));
                }
            }
            _ => {}
        }
    }
    found
}

impl Example {
    /// With the times of now.
    fn claims_now(&self) -> Value {
        let mut claims = self.claims.clone();
        for (name, at) in [("iat", -60), ("nbf", -60), ("exp", 600)] {
            if claims.get(name).is_some() {
                claims[name] = json!(START / 1_000 + at);
            }
        }
        claims
    }

    /// A server with the settings of the page, and a token that the issuer's key would sign.
    async fn start(&self) -> (TestEnv, crate::test_app::TestApp, String) {
        let env = TestEnv::new(Database::Sqlite);
        let kid = self.header["kid"].as_str();
        let mut settings = self.settings.clone();
        let curve = elliptic();
        let published = match self.header["alg"].as_str() {
            Some("RS256") => Some(&*RSA),
            Some("ES256") => Some(&curve),
            Some("HS256") => None,
            other => panic!("{other:?}"),
        };
        let token = match published {
            Some(pair) => {
                let file = env.folder().join("jwks.json");
                std::fs::write(&file, jwks(&[pair.public(kid)]).to_string()).expect("written");
                let (_, url) =
                    settings.iter().find(|(name, _)| *name == "WHARFINGER_JWKS_URL").expect("a JWKS");
                assert!(url.starts_with("https://"), "{url}");
                settings.retain(|(name, _)| *name != "WHARFINGER_JWKS_URL");
                settings.push(("WHARFINGER_JWKS_FILE", file.to_str().expect("UTF-8").to_owned()));
                pair.token(kid, &self.claims_now())
            }
            None => {
                let key = EncodingKey::from_secret(self.secret().as_bytes());
                encode(&Header::new(Algorithm::HS256), &self.claims_now(), &key).expect("a token")
            }
        };
        let borrowed: Vec<(&'static str, &str)> = settings.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let env = env.also(&borrowed);
        let server = env.start().await;
        (env, server, token)
    }

    fn secret(&self) -> &str {
        let found = self.settings.iter().find(|(name, _)| *name == "WHARFINGER_JWT_SECRET");
        &found.expect("a secret").1
    }
}

/// Uploads a file, and compares tenant, user and role with those of the page.
async fn uploads_as(caller: &Client<'_>, expected: &Value) {
    let id = caller.upload("report.pdf", b"bytes").await;
    assert_eq!(caller.get("/api/v2/quota").await.expect(200)["tenant"], expected["tenant"]);
    let history = caller.get(&format!("/api/v2/files/{id}/history")).await.expect(200);
    let text = |member: &str| expected[member].as_str().expect("a text").to_owned();
    assert_eq!(history["events"][0]["actor"], format!("{}:{}", text("role"), text("user")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_of_the_pages_upload_a_file() {
    let mut seen = 0;
    for name in ["auth0.md", "supabase.md", "clerk.md", "keycloak.md", "own-backend.md"] {
        let text = page(name);
        let examples = examples(&text);
        assert!(!examples.is_empty(), "{name} has an example");
        for (example, expected) in examples {
            let (_env, server, token) = example.start().await;
            uploads_as(&Client { server: &server, token }, &expected).await;
            seen += 1;
        }
    }
    assert_eq!(seen, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_code_of_the_pages_signs_tokens() {
    let text = page("own-backend.md");
    let (example, expected) = examples(&text).remove(0);
    let (env, server, _) = example.start().await;
    for (language, program, file) in [("js", "node", "token.mjs"), ("python", "python3", "token.py")] {
        let all = blocks(&text);
        let (_, code) = all.iter().find(|(found, _)| *found == language).expect("code");
        let path = env.folder().join(file);
        std::fs::write(&path, code).expect("written");
        let mut command = Command::new(program);
        let command = command.arg(&path).env("WHARFINGER_JWT_SECRET", example.secret());
        let output = tokio::task::block_in_place(|| command.output()).expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let token = String::from_utf8(output.stdout).expect("text").trim().to_owned();
        uploads_as(&Client { server: &server, token }, &expected).await;
    }
}
