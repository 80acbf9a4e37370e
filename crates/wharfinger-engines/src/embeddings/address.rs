//! Completes the URL of the embeddings endpoint.

use reqwest::Url;

const ENDPOINT_PATH: &str = "/embeddings";

/// The error does not contain the URL, because the URL can contain a secret.
pub(super) fn endpoint(url: &str) -> Result<Url, String> {
    let form = "the embeddings URL must have the form https://host/v1";
    let mut url = Url::parse(url.trim()).map_err(|error| format!("{form}: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{form}: the scheme must be http or https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("{form}: it contains a user or password; set the API key instead"));
    }
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/').to_owned();
    match path.as_str() {
        "" => url.set_path("/v1/embeddings"),
        path if path.ends_with(ENDPOINT_PATH) => url.set_path(path),
        path => url.set_path(&format!("{path}{ENDPOINT_PATH}")),
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::endpoint;

    #[test]
    fn a_partial_url_is_completed() {
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
    fn an_invalid_url_is_refused_and_not_shown() {
        for url in ["", "api.test/v1", "ftp://secret.test", "https://", "https://me:secret@api.test/v1"] {
            let error = endpoint(url).expect_err(url);
            assert!(error.contains("https://host/v1") && !error.contains("secret"), "{error}");
        }
    }
}
