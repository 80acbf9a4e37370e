//! The URL of a server, in which the database can be replaced.

use crate::Error;

/// The two parts of a server's URL, before and after the name of the database.
pub(crate) struct Address {
    server: String,
    parameters: String,
    port: u16,
}

impl Address {
    pub(crate) fn local(port: u16) -> Self {
        Self { server: format!("postgres://postgres@127.0.0.1:{port}"), parameters: String::new(), port }
    }

    /// Accepts any URL of the server. Ignores the database in it.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let (server, _, parameters) =
            split(url).ok_or_else(|| Error::new(format!("`{url}` is not a postgres:// URL")))?;
        let host = server.rsplit(['@', '/']).next().unwrap_or_default();
        let port = match host.rsplit_once(':') {
            // Colons inside brackets belong to an IPv6 address.
            Some((_, port)) if !host.ends_with(']') => {
                port.parse().map_err(Error::while_doing(format!("the port of `{url}`")))?
            }
            _ => 5432,
        };
        Ok(Self { server: server.to_owned(), parameters: parameters.to_owned(), port })
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("{}/{database}{}", self.server, self.parameters)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// The name of the database, from a name or a URL.
pub(crate) fn database_of(name_or_url: &str) -> &str {
    split(name_or_url).map_or(name_or_url, |(_, database, _)| database)
}

/// Server, database (may be empty) and parameters with their question mark (may be empty).
fn split(url: &str) -> Option<(&str, &str, &str)> {
    let scheme = ["postgres://", "postgresql://"].into_iter().find(|scheme| url.starts_with(scheme))?;
    let question_mark = url.find('?').unwrap_or(url.len());
    let (location, parameters) = url.split_at(question_mark);
    let (server, database) = match location[scheme.len()..].find('/') {
        Some(slash) => {
            let (server, path) = location.split_at(scheme.len() + slash);
            (server, &path[1..])
        }
        None => (location, ""),
    };
    Some((server, database, parameters))
}

#[cfg(test)]
mod tests {
    use super::{Address, database_of};

    #[test]
    fn the_database_is_replaced_and_the_rest_is_kept() {
        let address =
            Address::parse("postgresql://me:secret@db.test:5433/old?sslmode=require").expect("a valid URL");
        assert_eq!(address.port(), 5433);
        assert_eq!(address.url("new"), "postgresql://me:secret@db.test:5433/new?sslmode=require");
    }

    #[test]
    fn a_url_without_a_port_means_the_default_port() {
        for url in ["postgres://db.test", "postgres://me@[::1]/?a=/b"] {
            let address = Address::parse(url).expect("a valid URL");
            assert_eq!(address.port(), 5432, "{url}");
        }
    }

    #[test]
    fn other_urls_are_refused() {
        for url in ["", "5432", "mysql://db.test/x", "postgres://db.test:x/"] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_database_is_read_from_a_name_or_a_url() {
        assert_eq!(database_of("seed"), "seed");
        assert_eq!(database_of(&Address::local(1).url("seed")), "seed");
    }
}
