//! Checks the addresses of endpoints. Private addresses (this machine, its network, the metadata service of a cloud)
//! are refused, also for names that resolve to them, unless the operator allows them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("must be a URL that begins with https:// or http://")]
    Shape,
    #[error("{0} is not a public address; WEBHOOK_ALLOW_PRIVATE=true allows it")]
    Private(String),
    #[error("{0} does not resolve: {1}")]
    Unresolved(String, String),
    #[error("cannot create the HTTP client: {0}")]
    Client(String),
}

/// The address of a receiver. Its path can contain a secret, so only the host is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) url: Url,
    pub(super) allow_private: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.host())
    }
}

impl Endpoint {
    /// Checks a literal address here, in any notation. A name is checked when it is resolved.
    pub fn new(url: &str, allow_private: bool) -> Result<Endpoint, EndpointError> {
        let url: Url = url.parse().map_err(|_| EndpointError::Shape)?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(EndpointError::Shape);
        }
        let endpoint = Endpoint { url, allow_private };
        match endpoint.literal() {
            Some(address) if !allow_private && !is_public(address) => {
                Err(EndpointError::Private(endpoint.host()))
            }
            _ => Ok(endpoint),
        }
    }

    pub fn host(&self) -> String {
        self.url.host_str().unwrap_or_default().to_owned()
    }

    /// The whole URL, to distinguish endpoints. It can contain a secret.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    pub fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    pub fn allows_private(&self) -> bool {
        self.allow_private
    }

    fn literal(&self) -> Option<IpAddr> {
        self.host().trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

/// Checks that the host resolves to an allowed address now.
pub async fn check_resolves(endpoint: &Endpoint) -> Result<(), EndpointError> {
    if endpoint.literal().is_some() {
        return Ok(());
    }
    let host = endpoint.host();
    match resolved(&host, endpoint.allow_private).await {
        Ok(_) => Ok(()),
        Err(Unresolvable::Private) => Err(EndpointError::Private(host)),
        Err(Unresolvable::Unknown(why)) => Err(EndpointError::Unresolved(host, why)),
    }
}

/// Why a host has no allowed address. `post` finds it again in the sources of a request's error.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Unresolvable {
    #[error("it has no public address")]
    Private,
    #[error("{0}")]
    Unknown(String),
}

async fn resolved(host: &str, allow_private: bool) -> Result<Vec<SocketAddr>, Unresolvable> {
    let unknown = |error: std::io::Error| Unresolvable::Unknown(error.to_string());
    let all: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await.map_err(unknown)?.collect();
    if all.is_empty() {
        return Err(Unresolvable::Unknown("it has no address".into()));
    }
    let allowed: Vec<SocketAddr> =
        all.into_iter().filter(|address| allow_private || is_public(address.ip())).collect();
    if allowed.is_empty() { Err(Unresolvable::Private) } else { Ok(allowed) }
}

/// Resolves and checks the host for every new connection, because the addresses of a name can change after
/// `check_resolves`.
pub(super) struct CheckedResolver {
    pub(super) allow_private: bool,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let addresses = resolved(name.as_str(), allow_private).await?;
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

/// Whether an address belongs to the public Internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = match (a, b, c) {
        // This network; carrier-grade NAT; protocol assignments; 6to4 relays; benchmarks; class E and broadcast.
        (0, ..) | (100, 64..=127, _) | (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _) | (240..=255, ..) => {
            true
        }
        _ => false,
    };
    !(reserved
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || address.is_multicast())
}

/// Only global unicast addresses are public, except reserved ones and ones that contain a private IPv4 address.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, .., g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b, c, d) {
        // NAT64 (RFC 6052): the IPv4 address is at the end.
        (0x64, 0xff9b, 0, 0) => address.segments()[4..6] == [0, 0] && is_public_v4(v4(g, h)),
        // 6to4: the IPv4 address is in the middle.
        (0x2002, ..) => is_public_v4(v4(b, c)),
        // Protocol assignments with Teredo, ORCHID and benchmarks; documentation.
        (0x2001, 0..=0x1ff, ..) | (0x2001, 0xdb8, ..) | (0x3fff, 0..=0xfff, ..) => false,
        _ => (0x2000..=0x3fff).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_and_reserved_addresses_are_not_public() {
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:8.8.8.8",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "64:ff9b:1::808:808",
            "64:ff9b:0:0:1::808:808",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(private.parse().expect(private)), "{private}");
        }
    }

    #[test]
    fn internet_addresses_are_public() {
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "64:ff9b::808:808",
            "2002:808:808::",
        ] {
            assert!(is_public(public.parse().expect(public)), "{public}");
        }
    }

    #[test]
    fn a_private_address_is_refused_in_every_notation() {
        for url in [
            "http://127.0.0.1/hook",
            "https://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1:8080/",
            "http://[::1]/",
            "http://[::ffff:7f00:1]/",
            "http://169.254.169.254/latest",
            "http://0/",
            "http://user:secret@10.0.0.1/",
            "http://１２７.0.0.1/",
        ] {
            let error = Endpoint::new(url, false).expect_err(url);
            assert!(matches!(error, EndpointError::Private(_)), "{url}: {error}");
            assert!(error.to_string().contains("WEBHOOK_ALLOW_PRIVATE"), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
            assert!(Endpoint::new(url, true).is_ok(), "{url}");
        }
    }

    #[test]
    fn an_invalid_url_is_refused() {
        for url in ["", "example.com", "ftp://example.com/", "https://", "file:///etc/passwd", "http://[1"] {
            assert_eq!(Endpoint::new(url, true), Err(EndpointError::Shape), "{url}");
        }
    }
}
