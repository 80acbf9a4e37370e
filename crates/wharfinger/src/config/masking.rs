//! Masks the secrets in URLs before they are shown.

pub const HIDDEN: &str = "********";

/// Query parameters whose values are not secret: options of drivers. All other values are masked.
const SHOWN: [&str; 16] = [
    "api-version",
    "application_name",
    "channel_binding",
    "connect_timeout",
    "connection_timeout",
    "db",
    "endpoint",
    "frame_max",
    "heartbeat",
    "mode",
    "prefix",
    "protocol",
    "region",
    "sslmode",
    "target_session_attrs",
    "timeout",
];

/// Masks the password of a URL, query values and the fragment. A user name without a password is masked too: it may be a
/// token. A value that is not a URL is masked completely, unless it ends in a colon (`sqlite:`).
pub fn mask_url(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else {
        return if value.is_empty() || value.ends_with(':') { value.to_owned() } else { HIDDEN.to_owned() };
    };
    // A password may have unescaped characters: of `u:p?w@host` only the user and the host may be shown.
    let (user, after) = match rest.rsplit_once('@') {
        Some((user, after)) if begins_with_login(user) => (Some(user), after),
        _ => match rest.split(['/', '?', '#']).next().and_then(|authority| authority.rfind('@')) {
            Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
            None => (None, rest),
        },
    };
    let (after, fragment) = match after.split_once('#') {
        Some((after, _)) => (after, format!("#{HIDDEN}")),
        None => (after, String::new()),
    };
    let (host, query) = match after.split_once('?') {
        Some((host, query)) => (host, format!("?{}", mask_query(query))),
        None => (after, String::new()),
    };
    let user = match user.map(|user| user.split_once(':')) {
        Some(Some((name, _))) if !name.is_empty() => format!("{name}:{HIDDEN}@"),
        Some(Some(_)) => format!(":{HIDDEN}@"),
        Some(None) => format!("{HIDDEN}@"),
        None => String::new(),
    };
    format!("{scheme}://{user}{host}{query}{fragment}")
}

/// Whether the text before the last `@` starts with a login. A query may contain an `@` too.
fn begins_with_login(before: &str) -> bool {
    let host = before.split('/').next().unwrap_or_default();
    let port = host.split_once(':').map(|(_, port)| port);
    let has_password = port.is_some_and(|port| !port.bytes().all(|byte| byte.is_ascii_digit()));
    has_password || !before.contains('/') || !before.contains('?')
}

fn mask_query(query: &str) -> String {
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if SHOWN.contains(&name.to_ascii_lowercase().as_str()) => pair.to_owned(),
        Some((name, _)) => format!("{name}={HIDDEN}"),
        None if pair.is_empty() => String::new(),
        None => HIDDEN.to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// For URLs whose path is a secret: shows only the host.
pub fn mask_path(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return mask_url(value) };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/{HIDDEN}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        for (value, shown) in [
            ("postgres://app:p@ss@db/x", "postgres://app:********@db/x"),
            ("postgres://app:p?a@db/x", "postgres://app:********@db/x"),
            ("postgres://app:p/ss@db/x", "postgres://app:********@db/x"),
            ("postgres://app:p/s?a@db/x", "postgres://app:********@db/x"),
            ("postgres://db:5432/x?password=p@ss", "postgres://db:5432/x?password=********"),
            ("redis://:p@db:6379/1", "redis://:********@db:6379/1"),
            ("postgres://db/x", "postgres://db/x"),
            (
                "postgres://db/x?password=p@ss&sslmode=require",
                "postgres://db/x?password=********&sslmode=require",
            ),
            ("https://TOKEN@id.example/keys", "https://********@id.example/keys"),
            (
                "https://TOKEN@id.example/keys?contact=ops@example.com",
                "https://********@id.example/keys?contact=********",
            ),
            (
                "https://id.example/keys?code=x&auth=y&pass=z&api_key=k&api-version=1",
                "https://id.example/keys?code=********&auth=********&pass=********&api_key=********&api-version=1",
            ),
            ("https://id.example/keys?x", "https://id.example/keys?********"),
            ("https://id.example/keys#token=x", "https://id.example/keys#********"),
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            ("0123456789", "********"),
            ("sqlite:", "sqlite:"),
            ("", ""),
        ] {
            assert_eq!(mask_url(value), shown, "{value}");
        }
        assert_eq!(mask_path("https://hooks.slack.com/services/T/B/x"), "https://hooks.slack.com/********");
        assert_eq!(mask_path("https://u:p@hooks.example?token=x"), "https://hooks.example/********");
        assert_eq!(mask_path(""), "");
    }
}
