//! Google's V4 signatures in URLs. A signature covers the query and the headers that the client must send.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use sha2::{Digest as _, Sha256};
use wharfinger_lifecycle::checksum::to_hex;

use crate::BlobError;

const ALGORITHM: &str = "GOOG4-RSA-SHA256";
/// Google's limit.
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// A service account that signs with its own key.
pub(super) struct Signer {
    email: String,
    key: RsaKeyPair,
}

/// A request to sign. Its parts are not yet encoded.
#[derive(Clone, Debug)]
pub(super) struct UnsignedRequest<'a> {
    pub(super) method: &'a str,
    /// Scheme and host.
    pub(super) endpoint: &'a str,
    /// Starts with the slash before the bucket.
    pub(super) path: &'a str,
    pub(super) query: Vec<(&'static str, String)>,
    /// Names in lower case. The signature covers all of them.
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) at: SystemTime,
    pub(super) lifetime: Duration,
}

impl Signer {
    pub(super) fn new(email: &str, pem: &str) -> Result<Signer, BlobError> {
        let refused =
            || BlobError::Refused("the service account's private key is invalid: download a new one".into());
        let body: String = pem.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
        let der = STANDARD.decode(body).map_err(|_| refused())?;
        let key = RsaKeyPair::from_pkcs8(&der).map_err(|_| refused())?;
        Ok(Signer { email: email.to_owned(), key })
    }

    /// A URL that is valid for this request only.
    pub(super) fn sign(&self, request: &UnsignedRequest<'_>) -> Result<String, BlobError> {
        if request.lifetime > LIFETIME_MAX {
            return Err(BlobError::Refused("a Google URL can live for seven days at most".into()));
        }
        let stamp = stamp(request.at);
        let (path, query, text) = self.text(request, &stamp);
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
            .map_err(|_| BlobError::Refused("the service account's key cannot sign".into()))?;
        let signature = hex(&signature);
        Ok(format!("{}{path}?{query}&X-Goog-Signature={signature}", request.endpoint))
    }

    /// The path and the query of the URL, and the text to sign.
    fn text(&self, request: &UnsignedRequest<'_>, stamp: &str) -> (String, String, String) {
        let host = request.endpoint.split_once("://").map_or(request.endpoint, |(_, host)| host);
        let mut headers: Vec<(&str, String)> = vec![("host", host.to_owned())];
        let plain = |value: &String| value.split_whitespace().collect::<Vec<_>>().join(" ");
        headers.extend(request.headers.iter().map(|(name, value)| (*name, plain(value))));
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let headers: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();

        let scope = format!("{}/auto/storage/goog4_request", stamp.get(..8).unwrap_or_default());
        let mut query = request.query.clone();
        query.extend([
            ("X-Goog-Algorithm", ALGORITHM.to_owned()),
            ("X-Goog-Credential", format!("{}/{scope}", self.email)),
            ("X-Goog-Date", stamp.to_owned()),
            ("X-Goog-Expires", request.lifetime.as_secs().to_string()),
            ("X-Goog-SignedHeaders", names.clone()),
        ]);
        query.sort();
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", encoded(value, ""))).collect();
        let (path, query) = (encoded(request.path, "/"), query.join("&"));
        let canonical = format!("{}\n{path}\n{query}\n{headers}\n{names}\nUNSIGNED-PAYLOAD", request.method);
        let digest = to_hex(&Sha256::digest(canonical.as_bytes()));
        (path, query, format!("{ALGORITHM}\n{stamp}\n{scope}\n{digest}"))
    }
}

/// Dots are not encoded, unlike in keys: the store encodes the parts again before it checks the signature.
fn encoded(text: &str, also: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn stamp(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let at = DateTime::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    at.fmt(Format::DateTime).unwrap_or_default().replace(['-', ':'], "")
}

#[cfg(test)]
mod tests {
    use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    use super::*;

    const KEY: &str = include_str!("testdata/key.pem");
    const EMAIL: &str = "wharf@project.iam.gserviceaccount.com";
    /// Created with Google's own library, google-cloud-storage 3.17.1 for Python, with this key and these requests.
    const BY_GOOGLE: &str = include_str!("testdata/signed_urls.txt");

    fn request<'a>(method: &'a str, path: &'a str) -> UnsignedRequest<'a> {
        UnsignedRequest {
            method,
            endpoint: "https://storage.googleapis.com",
            path,
            query: Vec::new(),
            headers: Vec::new(),
            at: UNIX_EPOCH + Duration::from_millis(2_000_000_000_999),
            lifetime: Duration::from_secs(600),
        }
    }

    fn requests() -> [UnsignedRequest<'static>; 4] {
        let upload = UnsignedRequest {
            headers: vec![
                ("x-goog-if-generation-match", "0".into()),
                ("content-type", "text/plain;  charset=utf-8 ".into()),
                ("x-goog-content-length-range", "5,5".into()),
            ],
            ..request("PUT", "/box.example/wharf/uploads/h%C3%A4fen/a.b~/f")
        };
        let download = UnsignedRequest {
            query: vec![
                ("response-content-type", "image/svg+xml".into()),
                ("response-content-disposition", "attachment; filename*=UTF-8''%C3%9C%20b%2Epdf".into()),
                ("generation", "1700000000000001".into()),
            ],
            ..request("GET", "/box.example/f")
        };
        let part = UnsignedRequest {
            query: vec![("uploadId", "a-b_c/d=".into()), ("partNumber", "7".into())],
            ..request("PUT", "/box.example/f")
        };
        let begin =
            UnsignedRequest { query: vec![("uploads", String::new())], ..request("POST", "/box.example/f") };
        [upload, download, part, begin]
    }

    #[test]
    fn urls_equal_those_of_googles_own_library() {
        let signer = Signer::new(EMAIL, KEY).expect("a key");
        let by_google: Vec<&str> = BY_GOOGLE.lines().collect();
        assert_eq!(by_google.len(), 4);
        for (request, theirs) in requests().iter().zip(by_google) {
            assert_eq!(signer.sign(request).expect("signed"), theirs);
        }
    }

    #[test]
    fn the_signed_text_has_the_documented_form() {
        let signer = Signer::new(EMAIL, KEY).expect("a key");
        let [upload, ..] = requests();
        let (path, query, text) = signer.text(&upload, "20330518T033320Z");
        let signed = "content-type;host;x-goog-content-length-range;x-goog-if-generation-match";
        let canonical = [
            "PUT",
            "/box.example/wharf/uploads/h%25C3%25A4fen/a.b~/f",
            &query,
            "content-type:text/plain; charset=utf-8",
            "host:storage.googleapis.com",
            "x-goog-content-length-range:5,5",
            "x-goog-if-generation-match:0",
            "",
            signed,
            "UNSIGNED-PAYLOAD",
        ];
        assert_eq!(path, canonical[1]);
        let digest = to_hex(&Sha256::digest(canonical.join("\n")));
        let scope = "20330518/auto/storage/goog4_request";
        assert_eq!(text, format!("GOOG4-RSA-SHA256\n20330518T033320Z\n{scope}\n{digest}"));
    }

    #[test]
    fn a_signature_is_valid_for_the_signed_request_only() {
        let signer = Signer::new(EMAIL, KEY).expect("a key");
        let public = signer.key.public_key().as_ref().to_vec();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
        let good = |request: &UnsignedRequest<'_>, url: &str| {
            let hex = url.split_once("X-Goog-Signature=").expect("a signature").1;
            let bytes: Vec<u8> = (0..hex.len() / 2)
                .map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).expect("hex"))
                .collect();
            let text = signer.text(request, &stamp(request.at)).2;
            public.verify(text.as_bytes(), &bytes).is_ok()
        };
        let [upload, ..] = requests();
        let url = signer.sign(&upload).expect("signed");
        assert!(good(&upload, &url));
        let changes: [&dyn Fn(&mut UnsignedRequest<'_>); 9] = [
            &|other| other.method = "GET",
            &|other| other.path = "/box.example/wharf/uploads/h%C3%A4fen/a.b~/g",
            &|other| other.endpoint = "https://storage.example",
            &|other| other.at += Duration::from_secs(1),
            &|other| other.lifetime += Duration::from_secs(1),
            &|other| other.headers[0].1 = "1".into(),
            &|other| other.headers[1].1 = "text/html".into(),
            &|other| other.headers[2].1 = "5,6".into(),
            &|other| other.query.push(("uploads", String::new())),
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut other = upload.clone();
            change(&mut other);
            assert!(!good(&other, &url), "change {at}");
        }
    }

    #[test]
    fn a_lifetime_that_google_refuses_is_refused_here() {
        let signer = Signer::new(EMAIL, KEY).expect("a key");
        let [upload, ..] = requests();
        assert!(signer.sign(&UnsignedRequest { lifetime: LIFETIME_MAX, ..upload.clone() }).is_ok());
        let longer = UnsignedRequest { lifetime: LIFETIME_MAX + Duration::from_secs(1), ..upload };
        assert!(matches!(signer.sign(&longer), Err(BlobError::Refused(_))));
        for bad in ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"] {
            assert!(Signer::new(EMAIL, bad).is_err(), "{bad}");
        }
    }
}
