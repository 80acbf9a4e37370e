//! Who the caller is: the claims of a token can have any name, and a service key has none.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use wharfinger_lifecycle::UnixMs;

use super::Shared;
use crate::auth::Session;
use crate::clock::rfc3339;

/// The last time that can be written with a year of four digits.
const LAST_YEAR_ENDS: UnixMs = 253_402_300_799_999;

/// The caller of a request.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionView {
    #[schema(example = "acme")]
    tenant: String,
    #[schema(example = "ann")]
    user: String,
    /// `user`, `admin` or `operator`.
    #[schema(example = "user")]
    role: &'static str,
    /// Null: never, or after the year 9999.
    #[schema(example = "2026-11-15T06:44:37.622Z")]
    expires_at: Option<String>,
}

/// Show the caller
///
/// Tenant, user and role as the server reads them from the token.
#[utoipa::path(
    get, path = "/api/v2/session", tag = "operations", operation_id = "getSession",
    responses((status = 200, body = SessionView, description = "The caller of this request")),
)]
pub(super) async fn get(State(_app): State<Shared>, session: Session) -> Json<SessionView> {
    Json(SessionView {
        tenant: session.caller.tenant.to_string(),
        user: session.caller.user.to_string(),
        role: session.caller.role.as_str(),
        expires_at: (session.expires_at <= LAST_YEAR_ENDS).then(|| rfc3339(session.expires_at)),
    })
}
