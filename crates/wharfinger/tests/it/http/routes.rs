//! Unknown paths and unsupported methods are answered with problem documents, like all errors.

use reqwest::Method;

use crate::test_app::{Database, TestEnv};

#[tokio::test]
async fn an_unknown_path_is_not_found() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    for path in [
        "/nope",
        "/api",
        "/api/",
        "/api/v2",
        "/api/v2/nope",
        "/api/v3/files",
        "/api/v2/files/",
        "/api/v2/files/x/y/z",
        "/blobs",
        "/blobs/",
        "/files",
        "/files/x",
        "/healthz/",
        "/metrics/x",
        "/.env",
        "/%00",
        "/api/v2/files/%F0%9F%92%A9",
        "/api/v2/files/%ff",
    ] {
        let answer = me.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (404, "not_found"), "{path}");
        answer.expect_problem(404, "not_found");
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        me.send(me.request(method, "/api/v2/nope")).await.expect_problem(404, "not_found");
    }
}

#[tokio::test]
async fn an_unsupported_method_is_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let me = server.me();
    let file = "018f4e6e-7f3a-7000-8000-000000000001";
    for (method, path, allowed) in [
        (Method::GET, "/api/v2/files/init".to_owned(), "POST"),
        (Method::GET, "/files/init".to_owned(), "POST"),
        (Method::DELETE, "/api/v2/files".to_owned(), "GET"),
        (Method::PUT, format!("/api/v2/files/{file}"), "DELETE"),
        (Method::GET, format!("/api/v2/files/{file}/confirm"), "POST"),
        (Method::GET, format!("/api/v2/files/{file}/url"), "POST"),
        (Method::POST, format!("/api/v2/files/{file}/history"), "GET"),
        (Method::GET, format!("/api/v1/documents/{file}"), "DELETE"),
        (Method::GET, "/api/v2/batches".to_owned(), "POST"),
        (Method::DELETE, format!("/api/v2/batches/{file}"), "GET"),
        (Method::GET, format!("/api/v2/batches/{file}/cancel"), "POST"),
        (Method::POST, "/api/v2/quota".to_owned(), "GET"),
        (Method::GET, "/api/v2/tenants/t/quota".to_owned(), "PUT"),
        (Method::GET, "/api/v1/maintenance/cleanup/trigger".to_owned(), "POST"),
        (Method::POST, "/api/v2/uploads/stuck".to_owned(), "GET"),
        (Method::GET, "/api/v2/uploads/stuck/retry-all".to_owned(), "POST"),
        (Method::GET, format!("/api/v2/uploads/stuck/{file}/retry"), "POST"),
        (Method::POST, "/healthz".to_owned(), "GET"),
        (Method::POST, "/metrics".to_owned(), "GET"),
        (Method::DELETE, "/openapi.json".to_owned(), "GET"),
    ] {
        let answer = me.send(me.request(method.clone(), &path)).await;
        assert_eq!(answer.status, 405, "{method} {path}: {}", answer.body);
        let allow = answer.headers["allow"].to_str().expect("text");
        assert!(allow.split(',').any(|method| method.trim() == allowed), "{method} {path}: {allow}");
        answer.expect_problem(405, "method_not_allowed");
    }
}

#[tokio::test]
async fn the_root_path_serves_the_dashboard() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let get = |path: &str| server.http.get(format!("{}{path}", server.url));
    let page = get("/").send().await.expect("an answer");
    assert_eq!(
        (page.status().as_u16(), &page.headers()["content-type"]),
        (200, &"text/html; charset=utf-8".parse().expect("a value"))
    );
    let policy = page.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    let script = get("/dashboard/js/main.js").send().await.expect("an answer");
    assert_eq!(
        (script.status().as_u16(), &script.headers()["content-type"]),
        (200, &"text/javascript; charset=utf-8".parse().expect("a value"))
    );
    let etag = script.headers()["etag"].clone();
    let again = get("/dashboard/js/main.js").header("if-none-match", etag).send().await.expect("an answer");
    assert_eq!(again.status(), 304);
    for unknown in ["/dashboard/js/none.js", "/dashboard/mod.rs", "/dashboard/js/../mod.rs", "/dashboard/"] {
        assert_eq!(get(unknown).send().await.expect("an answer").status(), 404, "{unknown}");
    }
}
