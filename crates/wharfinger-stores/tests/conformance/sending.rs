//! An HTTP client for signed requests and for tampered ones.

use std::net::SocketAddr;
use std::sync::Arc;

use wharfinger_stores::SignedRequest;
use wharfinger_stores::disk::DiskStore;

use super::disk_route;

#[derive(Clone)]
pub(super) enum Client {
    Http(reqwest::Client),
    /// Requests to URLs of this store, without HTTP.
    Disk(Arc<DiskStore>),
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: reqwest::header::HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn accepted(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// A refusal, and not a failure of the server. Some stores answer 501 to requests that they do not know.
    pub(super) fn refused(&self) -> bool {
        (400..500).contains(&self.status) || self.status == 501
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub(super) fn new() -> Client {
        Client::Http(reqwest::Client::new())
    }

    /// A client that resolves the host to this address.
    pub(super) fn resolving(host: &str, address: SocketAddr) -> Client {
        let client = reqwest::Client::builder().resolve(host, address).build();
        Client::Http(client.expect("a client"))
    }

    pub(super) async fn send(&self, signed: &SignedRequest, body: &[u8]) -> Answer {
        self.send_as(signed.method, signed, body).await
    }

    /// Sends the request with another method.
    pub(super) async fn send_as(&self, method: &str, signed: &SignedRequest, body: &[u8]) -> Answer {
        let http = match self {
            Client::Http(http) => http,
            Client::Disk(disk) => return disk_route::answer(disk, method, &signed.url, body).await,
        };
        let method = method.parse().expect("a method");
        let mut request = http.request(method, &signed.url);
        if signed.method != "GET" {
            request = request.header("content-length", body.len()).body(body.to_vec());
        }
        for (name, value) in &signed.headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.expect("answered");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Answer { status, headers, body: answer.bytes().await.expect("a whole answer").to_vec() }
    }
}

/// The same request to another URL.
pub(super) fn to(signed: &SignedRequest, url: String) -> SignedRequest {
    SignedRequest { url, ..signed.clone() }
}

/// The request with one header changed, or removed if the value is None.
pub(super) fn with_header(signed: &SignedRequest, name: &str, value: Option<&str>) -> SignedRequest {
    let mut other = signed.clone();
    other.headers.retain(|(header, _)| header != name);
    other.headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    other
}

/// Copies of the request, each with a changed path, or with one query parameter changed or removed.
pub(super) fn tampered(signed: &SignedRequest) -> Vec<SignedRequest> {
    let (path, query) = signed.url.split_once('?').expect("a signed URL has a query");
    let parameters: Vec<&str> = query.split('&').collect();
    let mut urls = vec![
        format!("{path}x?{query}"),
        format!("{path}/x?{query}"),
        format!("{}?{query}", &path[..path.len() - 1]),
        path.to_owned(),
    ];
    for at in 0..parameters.len() {
        let with = |parameter: Option<String>| {
            let mut others: Vec<String> = parameters.iter().map(|&text| text.to_owned()).collect();
            others.splice(at..=at, parameter);
            format!("{path}?{}", others.join("&"))
        };
        let (name, value) = parameters[at].split_once('=').unwrap_or((parameters[at], ""));
        let (head, last) = value.split_at(value.len().saturating_sub(1));
        let other_last = if last == "1" { "2" } else { "1" };
        urls.push(with(None));
        urls.push(with(Some(format!("{name}={value}0"))));
        urls.push(with(Some(format!("{name}={head}{other_last}"))));
        urls.push(with(Some(format!("{name}="))));
    }
    urls.into_iter().map(|url| to(signed, url)).collect()
}

/// Copies of the request, each with an additional query parameter.
pub(super) fn extended(signed: &SignedRequest) -> Vec<SignedRequest> {
    let more = ["x=1", "acl", "uploads", "uploadId=x&partNumber=1", "versionId=x", "X-Amz-Expires=604800"];
    more.iter().map(|more| to(signed, format!("{}&{more}", signed.url))).collect()
}
