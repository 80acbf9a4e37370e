//! The address and credentials of an object store as one URL, for an environment variable:
//! `http://name:secret@host:port`.

use std::fmt;

use crate::Error;
use crate::percent::{decoded, encoded};

/// An address with credentials. The secret is percent-encoded only in the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    pub(crate) host_and_port: String,
    pub(crate) name: String,
    pub(crate) secret: String,
}

impl StoreAddress {
    pub(crate) fn local(port: u16, name: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { host_and_port: format!("127.0.0.1:{port}"), name: name.into(), secret: secret.into() }
    }

    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        // The URL contains a secret, so the error does not repeat it.
        let invalid = || Error::new("expected http://name:secret@host:port");
        let (credentials, host_and_port) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.trim_end_matches('/').rsplit_once('@'))
            .ok_or_else(invalid)?;
        let (name, secret) = credentials.split_once(':').ok_or_else(invalid)?;
        let port = host_and_port.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if name.is_empty() || port.is_none() {
            return Err(invalid());
        }
        Ok(Self {
            host_and_port: host_and_port.to_owned(),
            name: decoded(name).ok_or_else(invalid)?,
            secret: decoded(secret).ok_or_else(invalid)?,
        })
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.host_and_port)
    }

    /// Zero is impossible for an address that [`Self::parse`] accepts.
    pub(crate) fn port(&self) -> u16 {
        self.host_and_port.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default()
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, secret) = (encoded(&self.name), encoded(&self.secret));
        write!(formatter, "http://{name}:{secret}@{}", self.host_and_port)
    }
}

#[cfg(test)]
mod tests {
    use super::StoreAddress;

    #[test]
    fn a_url_is_parsed_to_the_same_address() {
        let address = StoreAddress::local(8080, "me", "a+/b==%:@é");
        let url = address.to_string();
        assert_eq!(url, "http://me:a%2B%2Fb%3D%3D%25%3A%40%C3%A9@127.0.0.1:8080");
        assert_eq!(StoreAddress::parse(&url).expect("a valid URL"), address);
        assert_eq!(address.endpoint(), "http://127.0.0.1:8080");
        assert_eq!(address.port(), 8080);
    }

    #[test]
    fn a_secret_without_special_characters_needs_no_encoding() {
        let address = StoreAddress::parse("http://me:a+/b==@store.test:80/").expect("a valid URL");
        assert_eq!((&*address.secret, &*address.host_and_port), ("a+/b==", "store.test:80"));
    }

    #[test]
    fn other_urls_are_refused_by_an_error_without_the_secret() {
        for url in [
            "",
            "me:secret@h:1",
            "http://h:1",
            "http://me@h:1",
            "http://me:secret@h",
            "http://:secret@h:1",
            "http://me:secret%2@h:1",
        ] {
            let error = StoreAddress::parse(url).expect_err(url);
            assert!(!error.to_string().contains("h:1"), "{error}");
        }
    }
}
