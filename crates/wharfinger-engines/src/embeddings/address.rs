//! The endpoint, from however much of it the settings name.

use reqwest::Url;

const LAST: &str = "/embeddings";

/// The error does not repeat the URL, for that may carry a secret.
pub(super) fn endpoint(url: &str) -> Result<Url, String> {
    let form = "the embeddings URL has the form https://host/v1";
    let mut url = Url::parse(url.trim()).map_err(|error| format!("{form}: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{form}: neither http nor https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("{form}: it carries a password; the key is a setting of its own"));
    }
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/').to_owned();
    match path.as_str() {
        "" => url.set_path("/v1/embeddings"),
        path if path.ends_with(LAST) => url.set_path(path),
        path => url.set_path(&format!("{path}{LAST}")),
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::endpoint;

    #[test]
    fn an_endpoint_is_named_in_full_or_in_part() {
        for (url, full) in [
            ("https://api.test", "https://api.test/v1/embeddings"),
            ("https://api.test/", "https://api.test/v1/embeddings"),
            ("https://api.test/v1", "https://api.test/v1/embeddings"),
            (" http://api.test:8080/v1/ ", "http://api.test:8080/v1/embeddings"),
            ("https://api.test/v1/embeddings", "https://api.test/v1/embeddings"),
            ("https://api.test/v1/embeddings/", "https://api.test/v1/embeddings"),
            ("https://api.test/a/b?version=1#c", "https://api.test/a/b/embeddings?version=1"),
        ] {
            assert_eq!(endpoint(url).expect(url).as_str(), full);
        }
    }

    #[test]
    fn what_is_none_is_refused_without_repeating_it() {
        for url in ["", "api.test/v1", "ftp://secret.test", "https://", "https://me:secret@api.test/v1"] {
            let error = endpoint(url).expect_err(url);
            assert!(error.contains("https://host/v1") && !error.contains("secret"), "{error}");
        }
    }
}
