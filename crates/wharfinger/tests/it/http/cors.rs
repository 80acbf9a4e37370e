//! Pages of other origins: configured origins may call, and other origins get no CORS headers.

use reqwest::Method;
use reqwest::header::HeaderMap;

use crate::test_app::{Database, TestApp, TestEnv};

const ALLOW: &str = "access-control-allow-origin";

async fn ask(server: &TestApp, method: Method, path: &str, origin: &str) -> HeaderMap {
    let mut request =
        server.http.request(method.clone(), format!("{}{path}", server.url)).header("origin", origin);
    if method == Method::OPTIONS {
        request = request
            .header("access-control-request-method", "PUT")
            .header("access-control-request-headers", "authorization,content-type,idempotency-key");
    }
    request.send().await.expect("an answer").headers().clone()
}

#[tokio::test]
async fn configured_origins_may_call_and_others_may_not() {
    let origins = "https://app.example.com, http://localhost:3000";
    let env = TestEnv::with(Database::Sqlite, &[("WHARFINGER_CORS_ORIGINS", origins)]);
    let server = env.start().await;
    let paths = ["/api/v2/files/init", "/api/v2/quota", "/blobs/uploads/t/u/x", "/healthz"];
    for origin in ["https://app.example.com", "http://localhost:3000"] {
        for path in paths {
            let preflight = ask(&server, Method::OPTIONS, path, origin).await;
            assert_eq!(preflight[ALLOW], origin, "{path}");
            let list = |name: &str| preflight[name].to_str().expect("text").to_ascii_lowercase();
            for method in ["get", "head", "post", "put", "delete"] {
                assert!(list("access-control-allow-methods").contains(method), "{method}");
            }
            for header in ["authorization", "content-type", "idempotency-key", "range"] {
                assert!(list("access-control-allow-headers").contains(header), "{header}");
            }
            // Errors have the header too. Without it the page cannot read them.
            assert_eq!(ask(&server, Method::GET, path, origin).await[ALLOW], origin, "{path}");
        }
    }
    for origin in [
        "https://evil.example",
        "http://app.example.com",
        "https://app.example.com:444",
        "https://app.example.com.evil.example",
        "null",
    ] {
        for path in paths {
            for method in [Method::OPTIONS, Method::GET] {
                let headers = ask(&server, method, path, origin).await;
                assert!(!headers.contains_key(ALLOW), "{origin} at {path}: {headers:?}");
            }
        }
    }
}

/// A page that is opened as `localhost` sends bytes to signed URLs, which contain the IP address.
#[tokio::test]
async fn the_page_may_upload_under_another_name_of_this_machine() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let grant = server.me().init("a", 3).await.expect(201);
    let url = grant["uploadUrl"].as_str().expect("a URL");
    let path = url.strip_prefix(&server.url).expect("a URL of this server");
    let port = server.url.rsplit_once(':').expect("a port").1;
    for origin in [format!("http://localhost:{port}"), format!("http://[::1]:{port}")] {
        for method in [Method::OPTIONS, Method::GET] {
            assert_eq!(ask(&server, method, path, &origin).await[ALLOW], origin);
        }
        let headers = ask(&server, Method::GET, "/api/v2/quota", &origin).await;
        assert!(!headers.contains_key(ALLOW), "only uploads are allowed: {headers:?}");
    }
    for origin in
        ["http://localhost:1", "http://localhost", "http://localhost.evil.example", "http://evil.example"]
    {
        let headers = ask(&server, Method::OPTIONS, path, origin).await;
        assert!(!headers.contains_key(ALLOW), "{origin}: {headers:?}");
    }
}

#[tokio::test]
async fn without_configured_origins_no_page_may_call() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    for method in [Method::OPTIONS, Method::GET] {
        let headers = ask(&server, method, "/api/v2/quota", "https://app.example.com").await;
        assert!(!headers.contains_key(ALLOW), "{headers:?}");
    }
}
