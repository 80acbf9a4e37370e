//! The web page at `/` and its assets, compiled into the program. The page loads nothing from other servers, and its
//! content security policy blocks inline scripts.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::{PutGrant, UrlLifetime};

use super::Shared;
use super::problem::Problem;
use crate::app::App;

/// A file of the page, as it is in the source.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! script {
    ($name:literal) => {
        Asset {
            name: concat!("js/", $name),
            content_type: "text/javascript; charset=utf-8",
            text: include_str!(concat!("../dashboard/js/", $name)),
        }
    };
}

const PAGE: Asset = Asset {
    name: "index.html",
    content_type: "text/html; charset=utf-8",
    text: include_str!("../dashboard/index.html"),
};

const ASSETS: &[Asset] = &[
    Asset {
        name: "style.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("../dashboard/style.css"),
    },
    Asset { name: "icon.svg", content_type: "image/svg+xml", text: include_str!("../dashboard/icon.svg") },
    script!("action_button.js"),
    script!("actions.js"),
    script!("api.js"),
    script!("charts.js"),
    script!("deletions.js"),
    script!("dom.js"),
    script!("file.js"),
    script!("files.js"),
    script!("icons.js"),
    script!("keys.js"),
    script!("live.js"),
    script!("main.js"),
    script!("maintenance.js"),
    script!("notifications.js"),
    script!("overview.js"),
    script!("paged_list.js"),
    script!("problems.js"),
    script!("recovery.js"),
    script!("session.js"),
    script!("signin.js"),
    script!("stored_uploads.js"),
    script!("stream.js"),
    script!("sweep_runs.js"),
    script!("sweeps.js"),
    script!("tables.js"),
    script!("theme.js"),
    script!("toasts.js"),
    script!("transfer.js"),
    script!("upload.js"),
    script!("uploads.js"),
    script!("words.js"),
];

/// Serves `index.html`.
pub(super) async fn page(State(app): State<Shared>, headers: HeaderMap) -> Response {
    let origin =
        app.dashboard.store_origin.get_or_try_init(async || store_origin(&app).await.ok_or(())).await;
    let policy = content_security_policy(origin.ok().map(String::as_str));
    let mut response = answer(&PAGE, &headers);
    let response_headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response_headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response_headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response_headers.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

/// Serves a script, the stylesheet or the icon.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let asset = ASSETS.iter().find(|asset| asset.name == name).ok_or_else(Problem::not_found)?;
    Ok(answer(asset, &headers))
}

/// A browser revalidates each asset on every load. The bytes are sent again only if they have changed.
fn answer(asset: &Asset, request_headers: &HeaderMap) -> Response {
    let mut hasher = DefaultHasher::new();
    asset.text.hash(&mut hasher);
    let etag = format!("\"{:016x}\"", hasher.finish());
    let is_cached =
        request_headers.get(header::IF_NONE_MATCH).is_some_and(|cached| cached.as_bytes() == etag.as_bytes());
    let headers = [
        (header::ETAG, etag),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::CONTENT_TYPE, asset.content_type.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    match is_cached {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, asset.text).into_response(),
    }
}

fn content_security_policy(store: Option<&str>) -> String {
    let store = store.map(|origin| format!(" {origin}")).unwrap_or_default();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:{store}; connect-src 'self'{store}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// The origin of signed URLs. The page must be allowed to connect to it, and to show pictures from it. None if the store cannot sign at the
/// moment: the next request for the page tries again.
async fn store_origin(app: &App) -> Option<String> {
    let now = app.core.clock.now();
    let grant = PutGrant {
        key: ObjectKey::parse("uploads/page/page/origin").ok()?,
        size: 0,
        content_type: None,
        checksum_sha256: None,
        lifetime: UrlLifetime { signed_at: now, expires_at: now + 1_000 },
    };
    let url = app.core.blobs.sign_put(&grant).await.ok()?.url;
    let origin = reqwest::Url::parse(&url).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_served_and_preloaded() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/js");
        for entry in std::fs::read_dir(folder).expect("the scripts") {
            let name = entry.expect("an entry").file_name();
            let name = format!("js/{}", name.to_str().expect("text"));
            assert!(ASSETS.iter().any(|asset| asset.name == name), "{name} is not served");
            // Without it the browser finds scripts import by import, with a round trip for each level.
            assert!(
                PAGE.text.contains(&format!("\"/dashboard/{name}\"")),
                "index.html does not preload {name}"
            );
        }
    }

    #[test]
    fn every_script_starts_with_its_purpose_and_is_short() {
        for asset in ASSETS.iter().filter(|asset| asset.name.ends_with(".js")) {
            assert!(asset.text.starts_with("// "), "{} does not start with a comment", asset.name);
            assert!(asset.text.lines().count() < 400, "{} is too long", asset.name);
            // A file name may contain an attack: text must never be parsed as markup.
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!asset.text.contains(word), "{} contains {word}", asset.name);
            }
        }
    }

    #[test]
    fn the_page_has_no_inline_scripts_or_styles() {
        for word in ["<style", " style=", " onclick=", "javascript:"] {
            assert!(!PAGE.text.contains(word), "the page contains {word}");
        }
    }
}
