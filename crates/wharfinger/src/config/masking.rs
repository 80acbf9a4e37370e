//! Addresses as they may be shown: without the secrets that they carry.

pub const HIDDEN: &str = "********";

/// Hides the password of a URL, before its host or in its query. What is no URL is hidden whole, unless it ends in a colon
/// (`sqlite:`).
pub fn mask_url(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else {
        return if value.is_empty() || value.ends_with(':') { value.to_owned() } else { HIDDEN.to_owned() };
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let place = match rest.rsplit_once('@') {
        Some((user, host)) => format!("{}:{HIDDEN}@{host}", user.split(':').next().unwrap_or_default()),
        None => rest.to_owned(),
    };
    match query {
        Some(query) => format!("{scheme}://{place}?{}", mask_query(query)),
        None => format!("{scheme}://{place}"),
    }
}

/// Values of names that sound like secrets.
fn mask_query(query: &str) -> String {
    let is_secret = |name: &str| {
        let name = name.to_ascii_lowercase();
        ["password", "passwd", "pwd", "token", "secret", "key", "sig", "credential"]
            .iter()
            .any(|word| name.contains(word))
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={HIDDEN}"),
        _ => pair.to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// The path of such a URL is a secret: only its host is shown.
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
        assert_eq!(mask_url("postgres://app:p@ss@db/x"), "postgres://app:********@db/x");
        assert_eq!(mask_url("postgres://db/x"), "postgres://db/x");
        assert_eq!(mask_url("postgres://db/x?password=p@ss&a=b"), "postgres://db/x?password=********&a=b");
        assert_eq!(
            mask_url("https://id.example/keys?api_key=x&Sig=y&a=b"),
            "https://id.example/keys?api_key=********&Sig=********&a=b"
        );
        assert_eq!(mask_url("0123456789"), "********");
        assert_eq!(mask_url("sqlite:"), "sqlite:");
        assert_eq!(mask_url(""), "");
        assert_eq!(mask_path("https://hooks.slack.com/services/T/B/x"), "https://hooks.slack.com/********");
        assert_eq!(mask_path("https://u:p@hooks.example?token=x"), "https://hooks.example/********");
        assert_eq!(mask_path(""), "");
    }
}
