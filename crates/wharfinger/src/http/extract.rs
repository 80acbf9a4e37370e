//! Extractors for bodies, queries and ids. Their errors are problem documents that name the field.

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
    /// `nextCursor` of the previous page.
    #[param(example = "01a1ddbc-73f6-7ed5-96bc-09d1851af368")]
    cursor: Option<String>,
    /// 1 to 1000. Default: 50.
    #[param(example = 50)]
    limit: Option<usize>,
}

impl PageQuery {
    pub fn cursor<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        self.cursor
            .as_deref()
            .map(|text| {
                text.parse().map_err(|_| Problem::invalid("cursor", "is not a `nextCursor` of this list"))
            })
            .transpose()
    }

    pub fn limit(&self) -> Result<usize, Problem> {
        page_limit(self.limit)
    }
}

/// An operator can restrict a call to one tenant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct TenantQuery {
    /// For operators: only this tenant. Default: all tenants.
    #[param(example = "default")]
    tenant: Option<String>,
}

impl TenantQuery {
    pub fn scope(&self, caller: &Caller) -> Result<Scope, Problem> {
        scope_within(caller, self.tenant.as_deref())
    }
}

/// A page of a list that an operator can restrict to one tenant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct TenantPageQuery {
    /// `nextCursor` of the previous page.
    #[param(example = "1767268800000.0198c5a1-7b7e-7c3a-9d53-0e6f0a2b1c4d")]
    cursor: Option<String>,
    /// 1 to 1000. Default: 50.
    #[param(example = 50)]
    limit: Option<usize>,
    /// For operators: only this tenant. Default: all tenants.
    #[param(example = "default")]
    tenant: Option<String>,
}

impl TenantPageQuery {
    pub fn new(cursor: Option<String>, limit: Option<usize>, tenant: Option<String>) -> TenantPageQuery {
        TenantPageQuery { cursor, limit, tenant }
    }

    pub fn scope(&self, caller: &Caller) -> Result<Scope, Problem> {
        scope_within(caller, self.tenant.as_deref())
    }

    pub fn page(self) -> PageQuery {
        PageQuery { cursor: self.cursor, limit: self.limit }
    }
}

/// The caller's scope, restricted to one tenant if one is given.
fn scope_within(caller: &Caller, tenant: Option<&str>) -> Result<Scope, Problem> {
    let Some(tenant) = tenant else { return Ok(caller.scope()) };
    let tenant = TenantId::new(tenant).map_err(|bad| Problem::invalid("tenant", bad))?;
    match caller.role {
        Role::Operator => Ok(Scope::Tenant(tenant)),
        _ if tenant == caller.tenant => Ok(caller.scope()),
        Role::User | Role::Admin | Role::Worker | Role::Ingest | Role::Metrics => Err(Problem::forbidden(
            "Only operators can read another tenant. Leave out the parameter `tenant`.",
        )),
    }
}

pub fn page_limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit {
        None => Ok(PAGE_ROWS_DEFAULT),
        Some(limit) if (1..=PAGE_ROWS_MAX).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::invalid("limit", format!("must be 1 to {PAGE_ROWS_MAX}"))),
    }
}

/// Cuts a list that was read with one extra row. Returns the cursor of the next page, if there is one.
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
            .map_err(|_| Problem::invalid("body", "could not be read completely"))?;
        let text = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
        // Serde would also accept an array for a struct, by position.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::invalid("body", "must be a JSON object"));
        }
        let mut json = serde_json::Deserializer::from_slice(text);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let (path, error) = (error.path().to_string(), error.into_inner());
            let text = error.to_string();
            let problem = match error.is_data() {
                true => plain_problem(text.rsplit_once(" at line ").map_or(&text, |(problem, _)| problem)),
                false => format!("is not valid JSON: {text}"),
            };
            Problem::invalid(&blamed_field(&path, &text), problem)
        })?;
        json.end().map_err(|error| Problem::invalid("body", format!("is not valid JSON: {error}")))?;
        Ok(Body(value))
    }
}

/// Rewords an error of serde for a client, to follow the name of the field. Serde repeats that name, and names Rust types.
fn plain_problem(problem: &str) -> String {
    const WHOLE_NUMBER: &str = "a whole number, 0 or more";
    if problem.starts_with("missing field `") {
        return "is missing".to_owned();
    }
    if problem.starts_with("duplicate field `") {
        return "is given more than once".to_owned();
    }
    if problem.starts_with("unknown field `") {
        return match problem.rsplit_once("`, expected ") {
            Some((_, known)) => format!("is unknown; known are {}", known.trim_start_matches("one of ")),
            None => "is unknown".to_owned(),
        };
    }
    if problem.contains("invalid digit") || problem.contains("integer from empty string") {
        return format!("must be {WHOLE_NUMBER}");
    }
    let problem = problem.replace("expected u64", &format!("expected {WHOLE_NUMBER}"));
    let problem = problem.replace("expected usize", &format!("expected {WHOLE_NUMBER}"));
    match (problem.strip_prefix("invalid type: "), problem.strip_prefix("invalid value: ")) {
        (Some(found), _) => format!("has the wrong type: {found}"),
        (_, Some(found)) => format!("has a wrong value: {found}"),
        _ => problem,
    }
}

/// The field to blame. Serde names an unknown or missing field in the message, and the item of a list in the path.
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

/// The `Idempotency-Key` of the request.
pub fn idempotency_key(headers: &HeaderMap) -> Option<String> {
    headers.get("idempotency-key").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// An id in a path. A malformed id answers 404, like an id that does not exist.
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

/// A query string. Its errors are problem documents.
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned> axum::extract::FromRequestParts<Shared> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        app: &Shared,
    ) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, app).await.map_err(|rejection| {
            let text = rejection.body_text();
            let problem = text.rsplit_once("query string: ").map_or(text.as_str(), |(_, problem)| problem);
            match problem.split_once(": ").filter(|(field, _)| !field.contains(' ')) {
                Some((field, problem)) => Problem::invalid(field, plain_problem(problem)),
                None => Problem::invalid(&blamed_field("query", problem), plain_problem(problem)),
            }
        })?;
        Ok(QueryParams(query.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_serde_are_reworded() {
        for (error, expected) in [
            ("missing field `size`", "is missing"),
            ("duplicate field `size`", "is given more than once"),
            ("unknown field `Size`, expected one of `size`, `name`", "is unknown; known are `size`, `name`"),
            ("unknown field `x`, there are no fields", "is unknown"),
            (
                "invalid type: string \"1\", expected u64",
                "has the wrong type: string \"1\", expected a whole number, 0 or more",
            ),
            ("invalid digit found in string", "must be a whole number, 0 or more"),
        ] {
            assert_eq!(plain_problem(error), expected);
        }
    }
}
