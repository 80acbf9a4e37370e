//! Views of service keys, for the API and for `wharfinger key`.

use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_catalog::ServiceKey;

use crate::clock::rfc3339;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeysView {
    /// Newest first. Keys that ended more than 90 days ago are removed.
    pub keys: Vec<KeyView>,
    #[schema(example = "019a1ddbc73f5a7b21ef")]
    pub next_cursor: Option<String>,
}

/// A service key without its secret, which is stored nowhere.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyView {
    /// The part of the key after `whf_`.
    #[schema(example = "019a1ddbc73f5a7b21ef")]
    pub key_id: String,
    #[schema(example = "nightly import")]
    pub name: Option<String>,
    /// `user`, `admin`, `operator`, `worker`, `ingest` or `metrics`.
    #[schema(example = "ingest")]
    pub role: String,
    #[schema(example = "acme")]
    pub tenant: Option<String>,
    #[schema(example = "importer")]
    pub user: Option<String>,
    #[schema(example = "2026-11-15T05:44:37.622Z")]
    pub created_at: String,
    /// Written at most once a minute, so it may be two minutes old.
    #[schema(example = "2026-11-15T06:02:11.008Z")]
    pub last_used_at: Option<String>,
    /// Null: never.
    #[schema(example = "2027-02-13T05:44:37.622Z")]
    pub expires_at: Option<String>,
    #[schema(example = json!(null))]
    pub revoked_at: Option<String>,
}

impl From<ServiceKey> for KeyView {
    fn from(key: ServiceKey) -> Self {
        KeyView {
            key_id: key.id,
            name: key.name,
            role: key.role,
            tenant: key.tenant,
            user: key.user,
            created_at: rfc3339(key.created_at),
            last_used_at: key.last_used_at.map(rfc3339),
            expires_at: key.expires_at.map(rfc3339),
            revoked_at: key.revoked_at.map(rfc3339),
        }
    }
}
