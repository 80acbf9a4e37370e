//! Which claims of a token are its tenant, its user and its role, as the settings say. Refusals name the claim and what the
//! token has there, but never a value: it may be a secret.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use wharfinger_lifecycle::id::{BadName, TenantId, UserId};

use super::{Refused, SignError};
use crate::config::{BadSetting, TokenClaims};
use crate::core::{Caller, Role};

pub type Claims = Map<String, Value>;

pub struct ClaimRules {
    names: TokenClaims,
    roles: BTreeMap<String, Role>,
}

const TENANT_CLAIM: &str = "WHARFINGER_JWT_TENANT_CLAIM";
const USER_CLAIM: &str = "WHARFINGER_JWT_USER_CLAIM";
const ROLE_CLAIM: &str = "WHARFINGER_JWT_ROLE_CLAIM";

impl ClaimRules {
    pub fn new(names: TokenClaims) -> Result<ClaimRules, BadSetting> {
        let mut roles = BTreeMap::new();
        for (word, role) in &names.role_map {
            let role = Role::parse(role).ok_or_else(|| BadSetting {
                name: "WHARFINGER_JWT_ROLE_MAP".into(),
                problem: format!("`{role}` is not a role"),
            })?;
            roles.insert(word.clone(), role);
        }
        Ok(ClaimRules { names, roles })
    }

    pub fn caller(&self, claims: &Claims) -> Result<Caller, Refused> {
        let names = &self.names;
        let tenant = match (find(claims, &names.tenant), &names.default_tenant) {
            (None, Some(tenant)) => tenant.clone(),
            (None, None) => {
                return Err(Refused(format!(
                    "{}. Set {TENANT_CLAIM} to the claim that has the tenant, or WHARFINGER_DEFAULT_TENANT",
                    missing(&names.tenant, TENANT_CLAIM)
                )));
            }
            (Some(value), _) => parsed(value, &names.tenant, TENANT_CLAIM, TenantId::new)?,
        };
        let user = find(claims, &names.user).ok_or_else(|| Refused(missing(&names.user, USER_CLAIM)))?;
        let user = parsed(user, &names.user, USER_CLAIM, UserId::new)?;
        Ok(Caller { tenant, user, role: self.role(claims)? })
    }

    /// Of a list: operator before admin before user. Each other role can do things that a user cannot, and the reverse, so
    /// it counts only if it is alone.
    fn role(&self, claims: &Claims) -> Result<Role, Refused> {
        let claim = &self.names.role;
        let wrong = |found: &str| {
            Refused(format!(
                "the claim `{claim}` ({ROLE_CLAIM}) must be a text or a list of texts, the token has {found}"
            ))
        };
        let roles: Vec<Role> = match find(claims, claim) {
            None => Vec::new(),
            Some(Value::String(word)) => vec![self.meaning(word)],
            Some(Value::Array(list)) => list
                .iter()
                .map(|item| match item {
                    Value::String(word) => Ok(self.meaning(word)),
                    other => Err(wrong(&format!("a list with {}", kind(other)))),
                })
                .collect::<Result<_, _>>()?,
            Some(other) => return Err(wrong(kind(other))),
        };
        let broad = [Role::Operator, Role::Admin].into_iter().find(|role| roles.contains(role));
        Ok(match (broad, roles.first()) {
            (Some(role), _) => role,
            (None, Some(first)) if roles.iter().all(|role| role == first) => *first,
            _ => Role::User,
        })
    }

    /// The map comes first, so that it can also take a meaning away from one of our words.
    fn meaning(&self, word: &str) -> Role {
        self.roles.get(word).copied().or_else(|| Role::parse(word)).unwrap_or(Role::User)
    }

    /// The claims of a token of our own, under the names of the settings.
    pub fn of_caller(&self, caller: &Caller) -> Result<Claims, SignError> {
        let word = std::iter::once(caller.role.as_str())
            .chain(self.roles.keys().map(String::as_str))
            .find(|word| self.meaning(word) == caller.role)
            .ok_or(SignError::RoleWithoutWord(caller.role))?;
        let mut claims = Claims::new();
        // Whole names: they come before paths.
        for (name, text) in [
            (&self.names.user, caller.user.as_str()),
            (&self.names.tenant, caller.tenant.as_str()),
            (&self.names.role, word),
        ] {
            match claims.insert(name.clone(), text.into()) {
                Some(other) if other != text => return Err(SignError::SameClaim(name.clone())),
                _ => {}
            }
        }
        Ok(claims)
    }
}

/// A claim with exactly this name, else the first that its parts lead to. The longest names of objects are tried first, so
/// that names may contain dots too. A null counts as absent.
fn find<'c>(claims: &'c Claims, path: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(path).filter(|value| !value.is_null()) {
        return Some(value);
    }
    path.rmatch_indices('.').find_map(|(at, _)| match claims.get(&path[..at]) {
        Some(Value::Object(inner)) => find(inner, &path[at + 1..]),
        _ => None,
    })
}

/// A name. A whole number is its decimal digits: some issuers number their users and organizations.
fn parsed<T>(
    value: &Value,
    claim: &str,
    setting: &str,
    parse: impl Fn(&str) -> Result<T, BadName>,
) -> Result<T, Refused> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
        other => {
            let found = kind(other);
            return Err(Refused(format!(
                "the claim `{claim}` ({setting}) must be a text or a whole number, the token has {found}"
            )));
        }
    };
    parse(&text).map_err(|bad| Refused(format!("the claim `{claim}` ({setting}) {bad}")))
}

fn missing(claim: &str, setting: &str) -> String {
    format!("the token has no claim `{claim}` ({setting})")
}

/// The kind of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a number with a fraction, or one that is too large",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
