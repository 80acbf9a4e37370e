//! Where an object store is and who we are to it, as one URL that fits into a variable:
//! `http://name:secret@host:port`.

use std::fmt;

use crate::Error;
use crate::percent::{decoded, encoded};

/// An address with its credentials; base64 secrets are percent-encoded in the URL alone.
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
        // The URL holds a secret, so the complaint does not repeat it.
        let complaint = || Error::new("not of the form http://name:secret@host:port");
        let (credentials, host_and_port) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.trim_end_matches('/').rsplit_once('@'))
            .ok_or_else(complaint)?;
        let (name, secret) = credentials.split_once(':').ok_or_else(complaint)?;
        let port = host_and_port.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if name.is_empty() || port.is_none() {
            return Err(complaint());
        }
        Ok(Self {
            host_and_port: host_and_port.to_owned(),
            name: decoded(name).ok_or_else(complaint)?,
            secret: decoded(secret).ok_or_else(complaint)?,
        })
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.host_and_port)
    }

    /// Zero only for an address that [`Self::parse`] refuses.
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
    fn an_address_is_read_as_it_was_written() {
        let address = StoreAddress::local(8080, "me", "a+/b==%:@é");
        let url = address.to_string();
        assert_eq!(url, "http://me:a%2B%2Fb%3D%3D%25%3A%40%C3%A9@127.0.0.1:8080");
        assert_eq!(StoreAddress::parse(&url).expect("a proper URL"), address);
        assert_eq!(address.endpoint(), "http://127.0.0.1:8080");
        assert_eq!(address.port(), 8080);
    }

    #[test]
    fn a_secret_may_be_left_unencoded_where_nothing_in_it_misleads() {
        let address = StoreAddress::parse("http://me:a+/b==@store.test:80/").expect("a proper URL");
        assert_eq!((&*address.secret, &*address.host_and_port), ("a+/b==", "store.test:80"));
    }

    #[test]
    fn anything_else_is_refused_without_repeating_it() {
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
