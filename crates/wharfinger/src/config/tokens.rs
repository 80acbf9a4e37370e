//! The settings that say which claims of a token are meant.

use wharfinger_lifecycle::id::TenantId;

use super::BadSetting;
use super::layers::Values;

/// The names of the claims, each a name or a path with dots.
#[derive(Clone, Debug)]
pub struct TokenClaims {
    pub tenant: String,
    pub user: String,
    pub role: String,
    /// Words of the issuer with the words of our roles.
    pub role_map: Vec<(String, &'static str)>,
    pub default_tenant: Option<TenantId>,
}

/// Our roles that a token can have.
const ROLES: [&str; 6] = ["user", "admin", "operator", "worker", "ingest", "metrics"];
const CLAIM_BYTES_MAX: usize = 200;
/// Claims that have another meaning in every token.
const OTHER_CLAIMS: [&str; 4] = ["exp", "nbf", "iat", "aud"];

impl TokenClaims {
    pub(super) fn from_values(values: &Values) -> Result<TokenClaims, BadSetting> {
        Ok(TokenClaims {
            tenant: claim("WHARFINGER_JWT_TENANT_CLAIM", values)?,
            user: claim("WHARFINGER_JWT_USER_CLAIM", values)?,
            role: claim("WHARFINGER_JWT_ROLE_CLAIM", values)?,
            role_map: role_map(&values.get("WHARFINGER_JWT_ROLE_MAP").unwrap_or_default())?,
            default_tenant: values
                .get("WHARFINGER_DEFAULT_TENANT")
                .map(|name| TenantId::new(&name))
                .transpose()
                .map_err(|bad| BadSetting::new("WHARFINGER_DEFAULT_TENANT", bad.to_string()))?,
        })
    }
}

fn claim(setting: &'static str, values: &Values) -> Result<String, BadSetting> {
    let name = values.text(setting)?;
    let problem = match name.as_str() {
        "" => "must be the name of a claim, for example org_id".to_owned(),
        name if name.len() > CLAIM_BYTES_MAX => format!("must have at most {CLAIM_BYTES_MAX} bytes"),
        name if name.chars().any(char::is_control) => "contains a control character".to_owned(),
        name if OTHER_CLAIMS.contains(&name) => {
            format!("must not be `{name}`, which has another meaning in every token")
        }
        _ => return Ok(name),
    };
    Err(BadSetting::new(setting, problem))
}

fn role_map(text: &str) -> Result<Vec<(String, &'static str)>, BadSetting> {
    let bad = |problem: String| BadSetting::new("WHARFINGER_JWT_ROLE_MAP", problem);
    let mut map: Vec<(String, &'static str)> = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (word, role) = pair
            .rsplit_once('=')
            .map(|(word, role)| (word.trim(), role.trim()))
            .filter(|(word, _)| !word.is_empty())
            .ok_or_else(|| {
                bad(format!("`{pair}` is not a pair like service_role=admin. Separate pairs by commas"))
            })?;
        let role = ROLES.into_iter().find(|ours| *ours == role).ok_or_else(|| {
            bad(format!("`{role}` (in `{pair}`) is not a role here. The roles are {}", ROLES.join(", ")))
        })?;
        if map.iter().any(|(known, _)| known == word) {
            return Err(bad(format!("`{word}` is there twice")));
        }
        map.push((word.to_owned(), role));
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_map_is_a_list_of_pairs() {
        let map = role_map(" service_role = admin ,a=b=user,").expect("valid");
        assert_eq!(map, [("service_role".to_owned(), "admin"), ("a=b".to_owned(), "user")]);
        assert_eq!(role_map("").expect("valid"), []);
        for (text, named) in
            [("admin", "`admin`"), ("=admin", "`=admin`"), ("x=root", "`root`"), ("x=user,x=admin", "`x`")]
        {
            let bad = role_map(text).expect_err(text);
            assert!(bad.name == "WHARFINGER_JWT_ROLE_MAP" && bad.problem.contains(named), "{bad}");
        }
    }

    #[test]
    fn claims_have_defaults_and_must_be_possible() {
        let read = |pairs: &[(&str, &str)]| TokenClaims::from_values(&Values::for_tests(pairs));
        let claims = read(&[]).expect("the defaults");
        assert_eq!((&*claims.tenant, &*claims.user, &*claims.role), ("tenant", "sub", "role"));
        let long = "x".repeat(CLAIM_BYTES_MAX + 1);
        for (name, value) in [
            ("WHARFINGER_JWT_TENANT_CLAIM", "exp"),
            ("WHARFINGER_JWT_USER_CLAIM", long.as_str()),
            ("WHARFINGER_JWT_ROLE_CLAIM", "a\nb"),
            ("WHARFINGER_DEFAULT_TENANT", "a\nb"),
        ] {
            assert_eq!(read(&[(name, value)]).expect_err(value).name, name);
        }
    }
}
