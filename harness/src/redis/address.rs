//! The address and password of a Redis server as one URL: `redis://:password@host:port/0`.

use crate::Error;
use crate::percent::{decoded, encoded};

/// A server's address. The database in its URL is always 0.
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) password: Option<String>,
}

impl Address {
    pub(crate) fn local(port: u16, password: Option<&str>) -> Self {
        Self { host: "127.0.0.1".to_owned(), port, password: password.map(str::to_owned) }
    }

    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        // The URL may contain a password, so the error does not repeat it.
        let invalid = || Error::new("expected redis://:password@host:port");
        let rest = url.strip_prefix("redis://").ok_or_else(invalid)?;
        let (location, _) = rest.split_once('/').unwrap_or((rest, ""));
        let (password, host_and_port) = match location.rsplit_once('@') {
            Some((user_and_password, host_and_port)) => {
                let (_, password) = user_and_password.split_once(':').ok_or_else(invalid)?;
                (Some(decoded(password).ok_or_else(invalid)?), host_and_port)
            }
            None => (None, location),
        };
        let (host, port) = host_and_port.rsplit_once(':').unwrap_or((host_and_port, "6379"));
        let port = port.parse().map_err(|_| invalid())?;
        if host.is_empty() {
            return Err(invalid());
        }
        Ok(Self { host: host.to_owned(), port, password })
    }

    pub(crate) fn url(&self) -> String {
        let password = self.password.as_deref().map(|password| format!(":{}@", encoded(password)));
        format!("redis://{}{}:{}/0", password.unwrap_or_default(), self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn a_url_is_parsed_to_the_same_address() {
        for (address, url) in [
            (Address::local(7000, None), "redis://127.0.0.1:7000/0"),
            (Address::local(7000, Some("a/@:b")), "redis://:a%2F%40%3Ab@127.0.0.1:7000/0"),
        ] {
            assert_eq!(address.url(), url);
            let read = Address::parse(url).expect("a valid URL");
            assert_eq!((read.port, read.password), (address.port, address.password));
        }
    }

    #[test]
    fn port_and_database_are_optional() {
        let address = Address::parse("redis://cache.test").expect("a valid URL");
        assert_eq!((&*address.host, address.port), ("cache.test", 6379));
    }

    #[test]
    fn other_urls_are_refused_by_an_error_without_the_password() {
        for url in ["", "cache.test:1", "rediss://cache.test", "redis://", "redis://:secret@cache.test:x"] {
            let error = Address::parse(url).map(|address| address.url()).expect_err(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
