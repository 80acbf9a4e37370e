//! The list of service keys. `wharfinger key` creates and revokes them.

use axum::Json;
use axum::extract::State;

use super::Shared;
use super::auth::OperatorAuth;
use super::extract::{PageQuery, QueryParams, cut_page};
use super::problem::Problem;
use super::wire::{KeyView, KeysView};
use crate::core::VerbError;

/// List service keys
///
/// Keys are created and revoked by `wharfinger key` on the server's machine. The list has no secrets.
#[utoipa::path(
    get, path = "/api/v2/keys", tag = "operations", operation_id = "listKeys",
    params(PageQuery),
    responses(
        (status = 200, body = KeysView, description = "Every service key, newest first, also revoked and expired ones"),
        (status = 403, body = Problem, description = "`forbidden`: needs the role `operator`"),
    ),
)]
pub(super) async fn list(
    State(app): State<Shared>,
    OperatorAuth(_caller): OperatorAuth,
    QueryParams(page): QueryParams<PageQuery>,
) -> Result<Json<KeysView>, Problem> {
    let (limit, before) = (page.limit()?, page.cursor::<String>()?);
    let keys = app.core.catalog.service_keys(before.as_deref(), limit + 1).await;
    let mut keys = keys.map_err(VerbError::from)?;
    let next_cursor = cut_page(&mut keys, limit, |key| key.id.clone());
    Ok(Json(KeysView { keys: keys.into_iter().map(KeyView::from).collect(), next_cursor }))
}
