//! The page at `/` and its parts, built into the program: nothing is fetched from elsewhere, and nothing inline is let run.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_stores::{PutGrant, UrlLife};

use super::Shared;
use super::problem::Problem;
use crate::app::App;

/// A part of the page, as it stands in the source.
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
    script!("actions.js"),
    script!("api.js"),
    script!("charts.js"),
    script!("dom.js"),
    script!("file.js"),
    script!("files.js"),
    script!("icons.js"),
    script!("live.js"),
    script!("main.js"),
    script!("mending.js"),
    script!("notices.js"),
    script!("overview.js"),
    script!("problems.js"),
    script!("recovery.js"),
    script!("session.js"),
    script!("shelf.js"),
    script!("signin.js"),
    script!("stream.js"),
    script!("sweeps.js"),
    script!("tables.js"),
    script!("theme.js"),
    script!("toasts.js"),
    script!("transfer.js"),
    script!("upkeep.js"),
    script!("upload.js"),
    script!("uploads.js"),
    script!("words.js"),
];

/// The page itself.
pub(super) async fn page(State(app): State<Shared>, headers: HeaderMap) -> Response {
    let origin =
        app.dashboard.store_origin.get_or_try_init(async || store_origin(&app).await.ok_or(())).await;
    let policy = policy(origin.ok().map(String::as_str));
    let mut response = answer(&PAGE, &headers);
    let to = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        to.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    to.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    to.insert(HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"));
    response
}

/// One of its parts.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let asset = ASSETS.iter().find(|asset| asset.name == name).ok_or_else(Problem::not_found)?;
    Ok(answer(asset, &headers))
}

/// Asked for again each time, and sent again only when another version of the program has other bytes.
fn answer(asset: &Asset, asked: &HeaderMap) -> Response {
    let mut hasher = DefaultHasher::new();
    asset.text.hash(&mut hasher);
    let etag = format!("\"{:016x}\"", hasher.finish());
    let has_it = asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes());
    let headers = [
        (header::ETAG, etag),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::CONTENT_TYPE, asset.content_type.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    match has_it {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, asset.text).into_response(),
    }
}

fn policy(store: Option<&str>) -> String {
    let store = store.map(|origin| format!(" {origin}")).unwrap_or_default();
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{store}; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// Where signed URLs lead: uploads go straight there. None where the store cannot sign at the moment: the next who asks for
/// the page may have it.
async fn store_origin(app: &App) -> Option<String> {
    let now = app.core.clock.now();
    let grant = PutGrant {
        key: ObjectKey::parse("uploads/page/page/origin").ok()?,
        size: 0,
        content_type: None,
        checksum_sha256: None,
        life: UrlLife { signed_at: now, expires_at: now + 1_000 },
    };
    let url = app.core.blobs.sign_put(&grant).await.ok()?.url;
    let origin = reqwest::Url::parse(&url).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_served() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/js");
        for entry in std::fs::read_dir(folder).expect("the scripts") {
            let name = entry.expect("an entry").file_name();
            let name = format!("js/{}", name.to_str().expect("text"));
            assert!(ASSETS.iter().any(|asset| asset.name == name), "{name} is not served");
            // One round trip for all of them, and not one for each step from import to import.
            assert!(PAGE.text.contains(&format!("\"/dashboard/{name}\"")), "{name} is not named by the page");
        }
    }

    #[test]
    fn every_script_says_what_it_is_for_and_holds_one_idea() {
        for asset in ASSETS.iter().filter(|asset| asset.name.ends_with(".js")) {
            assert!(asset.text.starts_with("// "), "{} opens without a comment", asset.name);
            assert!(asset.text.lines().count() < 400, "{} is too long", asset.name);
            // Names of files are hostile: text is never markup.
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!asset.text.contains(word), "{} holds {word}", asset.name);
            }
        }
    }

    #[test]
    fn the_page_holds_nothing_inline() {
        for word in ["<style", " style=", " onclick=", "javascript:"] {
            assert!(!PAGE.text.contains(word), "the page holds {word}");
        }
    }
}
