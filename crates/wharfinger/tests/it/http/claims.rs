//! Which claims of a token are its tenant, user and role, as the settings say.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::EXP;
use super::signing_keys::{RSA, elliptic, jwks};
use crate::test_app::{Answer, Client, Database, TestApp, TestEnv};
use wharfinger::core::Role;

const SECRET: &str = "a secret that is longer than thirty-two bytes";

async fn start(settings: &[(&'static str, &str)]) -> (TestEnv, TestApp) {
    let mut all = vec![("WHARFINGER_JWT_SECRET", SECRET)];
    all.extend_from_slice(settings);
    let env = TestEnv::with(Database::Sqlite, &all);
    let server = env.start().await;
    (env, server)
}

/// A caller with a token of these claims, which expires later.
fn with<'s>(server: &'s TestApp, mut claims: Value) -> Client<'s> {
    claims["exp"] = json!(EXP);
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let token = encode(&Header::new(Algorithm::HS256), &claims, &key).expect("a token");
    Client { server, token }
}

async fn ask(server: &TestApp, claims: Value) -> Answer {
    with(server, claims).get("/api/v2/quota").await
}

/// Tenant and `role:user` of any_user has these claims, by a file that they register.
async fn any_user(server: &TestApp, claims: Value) -> (String, String) {
    let caller = with(server, claims);
    let tenant = caller.get("/api/v2/quota").await.expect(200)["tenant"].clone();
    let session = caller.get("/api/v2/session").await.expect(200);
    let file = caller.init("a", 0).await.expect(201)["fileId"].clone();
    let path = format!("/api/v2/files/{}/history", file.as_str().expect("an id"));
    let history = caller.get(&path).await.expect(200);
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (tenant, actor) = (text(&tenant), text(&history["events"][0]["actor"]));
    assert_eq!(text(&session["tenant"]), tenant);
    assert_eq!(format!("{}:{}", text(&session["role"]), text(&session["user"])), actor);
    assert_eq!(text(&session["expiresAt"]), wharfinger::clock::rfc3339(1_000 * EXP));
    (tenant, actor)
}

fn pair(tenant: &str, actor: &str) -> (String, String) {
    (tenant.to_owned(), actor.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_found_by_name_and_by_path() {
    let (_env, server) = start(&[
        ("WHARFINGER_JWT_TENANT_CLAIM", "app_metadata.org_id"),
        ("WHARFINGER_JWT_USER_CLAIM", "https://example.com/user"),
        ("WHARFINGER_JWT_ROLE_CLAIM", "resource_access.com.example.app.roles"),
    ])
    .await;
    let nested =
        json!({ "https://example.com/user": "u", "app_metadata": { "org_id": "acme" }, "sub": "other" });
    assert_eq!(any_user(&server, nested.clone()).await, pair("acme", "user:u"));
    let mut both = nested.clone();
    both["app_metadata.org_id"] = json!("by name");
    assert_eq!(any_user(&server, both.clone()).await.0, "by name", "the whole name comes before the path");
    both["app_metadata.org_id"] = Value::Null;
    assert_eq!(any_user(&server, both).await.0, "acme", "null is no claim");
    let mut dotted = nested.clone();
    dotted["resource_access"] = json!({ "com.example.app": { "roles": ["admin"] }, "com": "no object" });
    assert_eq!(any_user(&server, dotted).await, pair("acme", "admin:u"), "names of objects may have dots");
    // Some issuers number their users and organizations.
    let numbers =
        json!({ "https://example.com/user": 12345678901234567_u64, "app_metadata": { "org_id": -7 } });
    assert_eq!(any_user(&server, numbers).await, pair("-7", "user:12345678901234567"));

    // Its own tokens have the same claims.
    let id = server.as_user("t", "u", Role::Admin).upload("a", b"abc").await;
    assert_eq!(server.as_user("t", "v", Role::Admin).file(&id).await["status"], "ready");
    let refused = server.as_user("t", "v", Role::User).get(&format!("/api/v2/files/{id}")).await;
    refused.expect_problem(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_the_claim_and_what_was_found() {
    let settings = [("WHARFINGER_JWT_TENANT_CLAIM", "app.org"), ("WHARFINGER_JWT_ROLE_CLAIM", "app.roles")];
    let (_env, server) = start(&settings).await;
    let secret = "value-of-the-claim";
    let long = secret.repeat(20);
    for (claims, expected) in [
        (json!({ "sub": "u" }), "the token has no claim `app.org` (WHARFINGER_JWT_TENANT_CLAIM). Set "),
        (json!({ "sub": "u", "app": secret }), "has no claim `app.org`"),
        (
            json!({ "sub": "u", "app": { "org": [secret] } }),
            "`app.org` (WHARFINGER_JWT_TENANT_CLAIM) must be a text or a whole number, the token has a list",
        ),
        (json!({ "sub": "u", "app": { "org": { secret: 1 } } }), "the token has an object"),
        (json!({ "sub": "u", "app": { "org": true } }), "the token has true or false"),
        (json!({ "sub": "u", "app": { "org": 1.5 } }), "the token has a number with a fraction"),
        (
            json!({ "sub": "u", "app": { "org": "" } }),
            "`app.org` (WHARFINGER_JWT_TENANT_CLAIM) must not be empty",
        ),
        (json!({ "sub": "u", "app": { "org": long } }), "is longer than"),
        (json!({ "app": { "org": "t" } }), "the token has no claim `sub` (WHARFINGER_JWT_USER_CLAIM)"),
        (json!({ "sub": null, "app": { "org": "t" } }), "no claim `sub`"),
        (
            json!({ "sub": "u", "app": { "org": "t", "roles": 7 } }),
            "`app.roles` (WHARFINGER_JWT_ROLE_CLAIM) must be a text or a list of texts, the token has a number",
        ),
        (
            json!({ "sub": "u", "app": { "org": "t", "roles": ["admin", { secret: 1 }] } }),
            "a list with an object",
        ),
        (
            json!({ "sub": "u", "app": { "org": "t" }, "nbf": secret }),
            "`nbf` must be a number of seconds, the token has a text",
        ),
    ] {
        let problem = ask(&server, claims.clone()).await.expect_problem(401, "unauthorized");
        let detail = problem["detail"].as_str().expect("a text");
        assert!(detail.contains(expected), "{claims}: {detail}");
        assert!(!problem.to_string().contains(secret), "{claims}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_roles_the_broadest_counts_and_foreign_ones_are_users() {
    let map =
        ("WHARFINGER_JWT_ROLE_MAP", "service_role=admin,ops=operator,admin=user,batch=worker,ext=admin");
    let (_env, server) = start(&[map, ("PIPELINE_STAGES", "scan")]).await;
    for (role, counts_as) in [
        (Value::Null, "user"),
        (json!("user"), "user"),
        (json!("authenticated"), "user"),
        (json!("Admin"), "user"),
        (json!(""), "user"),
        (json!([]), "user"),
        (json!("service_role"), "admin"),
        (json!("ops"), "operator"),
        // The map can take the meaning of one of our words away.
        (json!("admin"), "user"),
        (json!(["user", "ext", "operator"]), "operator"),
        (json!(["offline_access", "service_role"]), "admin"),
        (json!(["worker", "ops"]), "operator"),
        (json!(["worker", "user"]), "user"),
        (json!(["worker", "something else"]), "user"),
        (json!(["worker", "metrics"]), "user"),
    ] {
        let claims = json!({ "sub": "u", "tenant": "t", "role": role });
        assert_eq!(any_user(&server, claims).await.1, format!("{counts_as}:u"), "{role}");
    }
    // A worker only where it is alone.
    for role in [json!("worker"), json!("batch"), json!(["worker"]), json!(["worker", "batch"])] {
        let worker = with(&server, json!({ "sub": "w", "tenant": "ops", "role": role }));
        worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
        worker.get("/api/v2/quota").await.expect_problem(403, "forbidden");
    }
    // A token never gets more than its word says.
    for (role, path) in [("ingest", "/api/v2/quota"), ("metrics", "/api/v2/files")] {
        let claims = json!({ "sub": "u", "tenant": "t", "role": role });
        with(&server, claims).get(path).await.expect_problem(403, "forbidden");
    }
    // The same words in the tokens of a worker mean what they may lease; elsewhere another issuer may use them freely.
    let free = json!({ "sub": "u", "tenant": "t", "stages": { "a": 1 }, "tenants": "all" });
    ask(&server, free.clone()).await.expect(200);
    let mut worker = free;
    worker["role"] = json!("worker");
    with(&server, worker).get("/api/v2/quota").await.expect_problem(401, "unauthorized");
    // No word of a token of its own means `admin` by itself, so it takes another.
    server.as_user("t", "u", Role::Admin).get("/api/v1/maintenance/cleanup/status").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_without_a_tenant_get_the_default_one() {
    let (_env, server) = start(&[("WHARFINGER_DEFAULT_TENANT", "everybody")]).await;
    assert_eq!(any_user(&server, json!({ "sub": "u" })).await, pair("everybody", "user:u"));
    assert_eq!(any_user(&server, json!({ "sub": "u", "tenant": null })).await.0, "everybody");
    assert_eq!(any_user(&server, json!({ "sub": "u", "tenant": "t" })).await.0, "t");
    // A wrong tenant is not replaced.
    for wrong in [json!(""), json!(["t"]), json!({}), json!(1.5)] {
        ask(&server, json!({ "sub": "u", "tenant": wrong })).await.expect_problem(401, "unauthorized");
    }
    // Each user can be a tenant.
    let (_env, server) = start(&[("WHARFINGER_JWT_TENANT_CLAIM", "sub")]).await;
    assert_eq!(any_user(&server, json!({ "sub": "u", "tenant": "t" })).await, pair("u", "user:u"));
    let caller = |tenant: &str| crate::test_app::caller(tenant, "u", Role::User);
    assert!(server.app.tokens.mint(&caller("u"), i64::MAX / 2).is_ok());
    let problem = server.app.tokens.mint(&caller("t"), i64::MAX / 2).expect_err("not both").to_string();
    assert!(problem.contains("`sub`"), "{problem}");
}

/// A secret that the program made by itself, before there was a JWKS, signs nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn beside_a_jwks_only_a_secret_of_the_settings_counts() {
    let env = TestEnv::new(Database::Sqlite);
    let old = env.start().await.token("t", "u", Role::Operator);
    assert!(env.data_dir().join("secrets/jwt.key").exists());
    let file = env.folder().join("jwks.json");
    let curve = elliptic();
    std::fs::write(&file, jwks(&[RSA.public(Some("r")), curve.public(Some("e"))]).to_string())
        .expect("written");
    let path = file.to_str().expect("UTF-8");
    let server = env.start_but("WHARFINGER_JWKS_FILE", path).await;
    let ask = async |token: String| Client { server: &server, token }.get("/api/v2/quota").await;
    ask(old).await.expect_problem(401, "unauthorized");
    let claims = super::claims();
    ask(RSA.token(Some("r"), &claims)).await.expect(200);
    ask(curve.token(Some("e"), &claims)).await.expect(200);
    drop(server);
    let env = env.also(&[("WHARFINGER_JWT_SECRET", SECRET)]);
    let server = env.start_but("WHARFINGER_JWKS_FILE", path).await;
    with(&server, claims.clone()).get("/api/v2/quota").await.expect(200);
    let by_issuer = Client { server: &server, token: RSA.token(Some("r"), &claims) };
    by_issuer.get("/api/v2/quota").await.expect(200);
}
