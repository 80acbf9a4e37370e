//! How a request is taken apart: bodies, queries and ids whose mistakes are problem documents that name the field.

use axum::extract::{FromRequest, Path, Query, Request};
use axum::http::HeaderMap;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
use wharfinger_catalog::Scope;
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::limits::{PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX};

use super::Shared;
use super::problem::Problem;
use crate::core::{Caller, Role};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// `nextCursor` of the page before.
    #[param(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    cursor: Option<String>,
    /// 1 to 1000, 50 if left out.
    #[param(example = 50)]
    limit: Option<usize>,
}

impl PageQuery {
    pub fn cursor<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        self.cursor
            .as_deref()
            .map(|text| text.parse().map_err(|_| Problem::invalid("cursor", "is not one that was given out")))
            .transpose()
    }

    pub fn limit(&self) -> Result<usize, Problem> {
        page_limit(self.limit)
    }
}

/// Whose figures an operator asks for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct TenantQuery {
    /// For operators: of this tenant only.
    #[param(example = "default")]
    tenant: Option<String>,
}

impl TenantQuery {
    pub fn scope(&self, caller: &Caller) -> Result<Scope, Problem> {
        scope_within(caller, self.tenant.as_deref())
    }
}

/// A page of what an operator asks for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct TenantPageQuery {
    /// `nextCursor` of the page before.
    #[param(example = "1767268800000.0198c5a1-7b7e-7c3a-9d53-0e6f0a2b1c4d")]
    cursor: Option<String>,
    /// 1 to 1000, 50 if left out.
    #[param(example = 50)]
    limit: Option<usize>,
    /// For operators: of this tenant only.
    #[param(example = "default")]
    tenant: Option<String>,
}

impl TenantPageQuery {
    pub fn scope(&self, caller: &Caller) -> Result<Scope, Problem> {
        scope_within(caller, self.tenant.as_deref())
    }

    pub fn page(self) -> PageQuery {
        PageQuery { cursor: self.cursor, limit: self.limit }
    }
}

/// A caller's scope, or the part of it that lies in one tenant.
fn scope_within(caller: &Caller, tenant: Option<&str>) -> Result<Scope, Problem> {
    let Some(tenant) = tenant else { return Ok(caller.scope()) };
    let tenant = TenantId::new(tenant).map_err(|bad| Problem::invalid("tenant", bad))?;
    match caller.role {
        Role::Operator => Ok(Scope::Tenant(tenant)),
        Role::User | Role::Admin | Role::Worker if tenant == caller.tenant => Ok(caller.scope()),
        Role::User | Role::Admin | Role::Worker => {
            Err(Problem::forbidden("only operators see other tenants than their own"))
        }
    }
}

pub fn page_limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit {
        None => Ok(PAGE_ROWS_DEFAULT),
        Some(limit) if (1..=PAGE_ROWS_MAX).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::invalid("limit", format!("must be 1 to {PAGE_ROWS_MAX}"))),
    }
}

/// Cuts a list that was read one row too far; answers the cursor of the next page.
pub fn cut_page<T>(rows: &mut Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Option<String> {
    if rows.len() <= limit {
        return None;
    }
    rows.truncate(limit);
    rows.last().map(cursor)
}

/// A JSON body; an absent one is an empty object.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Shared> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, app)
            .await
            .map_err(|_| Problem::invalid("body", "could not be read to its end"))?;
        let text = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
        // Serde would take an array for a struct, member by member.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::invalid("body", "must be a JSON object"));
        }
        let mut json = serde_json::Deserializer::from_slice(text);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let problem = plain_words(&error.into_inner().to_string());
            Problem::invalid(&blamed_field(&path, &problem), problem)
        })?;
        json.end().map_err(|error| Problem::invalid("body", error))?;
        Ok(Body(value))
    }
}

/// Serde speaks of Rust types; clients do not.
fn plain_words(problem: &str) -> String {
    let whole = "expected a whole number, 0 or more";
    problem.replace("expected u64", whole).replace("expected usize", whole)
}

/// Serde names an unknown or missing field in its message; its path says in which item of a list.
fn blamed_field(path: &str, problem: &str) -> String {
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| problem.strip_prefix(start))
        .and_then(|rest| rest.split('`').next());
    let inside = path.rsplit_once(']').map(|(list, _)| format!("{list}]."));
    match named {
        Some(field) => format!("{}{field}", inside.unwrap_or_default()),
        None if path == "." || path == "?" => "body".to_owned(),
        None => path.to_owned(),
    }
}

/// The client's name for what it asks for.
pub fn idempotency_key(headers: &HeaderMap) -> Option<String> {
    headers.get("idempotency-key").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// An id in a path. What is no id names nothing, so it is absent rather than wrong.
pub struct Id<T>(pub T);

impl<T: std::str::FromStr> axum::extract::FromRequestParts<Shared> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        app: &Shared,
    ) -> Result<Self, Problem> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, app).await.map_err(|_| Problem::not_found())?;
        text.parse().map(Id).map_err(|_| Problem::not_found())
    }
}

/// A query whose mistakes are problem documents.
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned> axum::extract::FromRequestParts<Shared> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        app: &Shared,
    ) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, app).await.map_err(|rejection| {
            let text = rejection.body_text();
            let problem = text.rsplit_once("query string: ").map_or(text.as_str(), |(_, problem)| problem);
            let named = problem.split_once(": ").map(|(field, _)| field).filter(|field| !field.contains(' '));
            Problem::invalid(named.unwrap_or(&blamed_field("query", problem)), problem)
        })?;
        Ok(Asked(query.0))
    }
}
