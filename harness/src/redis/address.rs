//! Where a Redis is and what it lets us in for, as one URL: `redis://:password@host:port/0`.

use crate::Error;
use crate::percent::{decoded, encoded};

/// A server's address; the database in its URL is always the first.
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
        // The URL may hold a password, so the complaint does not repeat it.
        let complaint = || Error::new("not of the form redis://:password@host:port");
        let rest = url.strip_prefix("redis://").ok_or_else(complaint)?;
        let (location, _) = rest.split_once('/').unwrap_or((rest, ""));
        let (password, host_and_port) = match location.rsplit_once('@') {
            Some((user_and_password, host_and_port)) => {
                let (_, password) = user_and_password.split_once(':').ok_or_else(complaint)?;
                (Some(decoded(password).ok_or_else(complaint)?), host_and_port)
            }
            None => (None, location),
        };
        let (host, port) = host_and_port.rsplit_once(':').unwrap_or((host_and_port, "6379"));
        let port = port.parse().map_err(|_| complaint())?;
        if host.is_empty() {
            return Err(complaint());
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
    fn an_address_is_read_as_it_was_written() {
        for (address, url) in [
            (Address::local(7000, None), "redis://127.0.0.1:7000/0"),
            (Address::local(7000, Some("a/@:b")), "redis://:a%2F%40%3Ab@127.0.0.1:7000/0"),
        ] {
            assert_eq!(address.url(), url);
            let read = Address::parse(url).expect("a proper URL");
            assert_eq!((read.port, read.password), (address.port, address.password));
        }
    }

    #[test]
    fn port_and_database_may_be_left_out() {
        let address = Address::parse("redis://cache.test").expect("a proper URL");
        assert_eq!((&*address.host, address.port), ("cache.test", 6379));
    }

    #[test]
    fn anything_else_is_refused_without_repeating_it() {
        for url in ["", "cache.test:1", "rediss://cache.test", "redis://", "redis://:secret@cache.test:x"] {
            let error = Address::parse(url).map(|address| address.url()).expect_err(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
