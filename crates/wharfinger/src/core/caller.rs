//! The caller of a request, and what the caller may see.

use wharfinger_catalog::Scope;
use wharfinger_lifecycle::id::{TenantId, UserId};

#[derive(Clone, Debug)]
pub struct Caller {
    pub tenant: TenantId,
    pub user: UserId,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    User,
    Admin,
    Operator,
    Worker,
    /// May only send events.
    Ingest,
    /// May only read `/metrics`.
    Metrics,
}

impl Role {
    pub fn parse(word: &str) -> Option<Role> {
        match word {
            "user" => Some(Role::User),
            "admin" => Some(Role::Admin),
            "operator" => Some(Role::Operator),
            "worker" => Some(Role::Worker),
            "ingest" => Some(Role::Ingest),
            "metrics" => Some(Role::Metrics),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Admin => "admin",
            Role::Operator => "operator",
            Role::Worker => "worker",
            Role::Ingest => "ingest",
            Role::Metrics => "metrics",
        }
    }
}

impl Caller {
    pub fn scope(&self) -> Scope {
        match self.role {
            Role::User | Role::Worker | Role::Ingest | Role::Metrics => {
                Scope::User(self.tenant.clone(), self.user.clone())
            }
            Role::Admin => Scope::Tenant(self.tenant.clone()),
            Role::Operator => Scope::All,
        }
    }

    /// The caller's own files only, whatever the role.
    pub fn own_scope(&self) -> Scope {
        Scope::User(self.tenant.clone(), self.user.clone())
    }

    pub fn actor(&self) -> String {
        format!("{}:{}", self.role.as_str(), self.user)
    }
}
