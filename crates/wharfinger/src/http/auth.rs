//! Authentication of a request by its bearer token (a JWT or a service key), with one extractor for each kind of caller.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::Shared;
use super::problem::Problem;
use crate::auth::{KEY_PREFIX, KeyError, Session};
use crate::core::{Caller, Role};
use crate::pipeline::remote::Worker;

impl FromRequestParts<Shared> for Session {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let session = authenticate(parts, app).await?;
        match session.caller.role {
            Role::User | Role::Admin | Role::Operator => Ok(session),
            Role::Worker | Role::Ingest | Role::Metrics => Err(other_calls(session.caller.role)),
        }
    }
}

/// The session of a request's token. A session that `read_body` has stored in the request is not checked again.
pub(super) async fn authenticate(parts: &Parts, app: &Shared) -> Result<Session, Problem> {
    if let Some(session) = parts.extensions.get::<Session>() {
        return Ok(session.clone());
    }
    let header = parts.headers.get(axum::http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .ok_or_else(|| Problem::unauthorized("Send the header `Authorization: Bearer <token>`."))?;
    let session = match token.starts_with(KEY_PREFIX) {
        true => app.service_keys.verify(token).await.map_err(|error| match error {
            KeyError::Refused(reason) => Problem::unauthorized(&reason.0),
            KeyError::Unavailable => Problem::unavailable(),
        })?,
        false => {
            let verified = app.tokens.verify(token, app.core.clock.now()).await;
            verified.map_err(|reason| Problem::unauthorized(&reason.0))?
        }
    };
    admit(&session.caller, app).await?;
    Ok(session)
}

/// Counts the request for its tenant. Operators and workers act for all tenants, so they have no limit. Events have
/// limits of their own.
async fn admit(caller: &Caller, app: &Shared) -> Result<(), Problem> {
    match caller.role {
        Role::User | Role::Admin => {
            app.rules.admit_request(&caller.tenant).await.map_err(Problem::tenant_rate)
        }
        Role::Operator | Role::Worker | Role::Ingest | Role::Metrics => Ok(()),
    }
}

/// For a role that has its own calls.
fn other_calls(role: Role) -> Problem {
    let calls = match role {
        Role::Worker => "be used for the worker calls",
        Role::Ingest => "send events",
        Role::Metrics => "read /metrics",
        Role::User | Role::Admin | Role::Operator => "make other calls",
    };
    Problem::forbidden(&format!("A token with the role `{}` can only {calls}.", role.as_str()))
}

/// A caller that sends events.
pub struct EventsAuth(pub Caller);

impl FromRequestParts<Shared> for EventsAuth {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let session = authenticate(parts, app).await?;
        match session.caller.role {
            Role::User | Role::Admin | Role::Operator | Role::Ingest => Ok(EventsAuth(session.caller)),
            Role::Worker | Role::Metrics => Err(other_calls(session.caller.role)),
        }
    }
}

/// A caller that may read the metrics of the process.
pub struct MetricsAuth;

impl FromRequestParts<Shared> for MetricsAuth {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        match authenticate(parts, app).await?.caller.role {
            Role::Operator | Role::Metrics => Ok(MetricsAuth),
            Role::User | Role::Admin | Role::Worker | Role::Ingest => {
                Err(Problem::forbidden("This call needs the role `operator` or `metrics`."))
            }
        }
    }
}

/// A caller that leases jobs: an outside worker or an operator.
pub struct WorkerAuth(pub Worker);

impl FromRequestParts<Shared> for WorkerAuth {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let Session { caller, lease_scope, .. } = authenticate(parts, app).await?;
        match caller.role {
            Role::Worker | Role::Operator => Ok(WorkerAuth(Worker { caller, scope: lease_scope })),
            Role::User | Role::Admin | Role::Ingest | Role::Metrics => {
                Err(Problem::forbidden("This call needs the role `worker` or `operator`."))
            }
        }
    }
}

/// A user, an admin or an operator.
pub struct UserAuth(pub Caller);

impl FromRequestParts<Shared> for UserAuth {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        Session::from_request_parts(parts, app).await.map(|session| UserAuth(session.caller))
    }
}

/// An admin (of its tenant) or an operator (of all tenants).
pub struct AdminAuth(pub Caller);

impl FromRequestParts<Shared> for AdminAuth {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let UserAuth(caller) = UserAuth::from_request_parts(parts, app).await?;
        match caller.role {
            Role::Admin | Role::Operator => Ok(AdminAuth(caller)),
            Role::User | Role::Worker | Role::Ingest | Role::Metrics => {
                Err(Problem::forbidden("This call needs the role `admin` or `operator`."))
            }
        }
    }
}

/// An operator: may see and change all tenants.
pub struct OperatorAuth(pub Caller);

impl FromRequestParts<Shared> for OperatorAuth {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let UserAuth(caller) = UserAuth::from_request_parts(parts, app).await?;
        match caller.role {
            Role::Operator => Ok(OperatorAuth(caller)),
            Role::User | Role::Admin | Role::Worker | Role::Ingest | Role::Metrics => {
                Err(Problem::forbidden("This call needs the role `operator`."))
            }
        }
    }
}
