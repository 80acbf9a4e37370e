//! Messages of Amazon SNS: their signature, and the request that confirms a subscription. Anyone can send messages that
//! SNS has signed, so a receiver needs a secret of its own too.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
};
use rustls_pki_types::CertificateDer;
use serde::Deserialize;
use webpki::EndEntityCert;

use super::messages::{CreatedObject, parse_inner};

const TIMEOUT: Duration = Duration::from_secs(5);
const CERTIFICATE_BYTES_MAX: usize = 64 * 1024;
const CERTIFICATES_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnsMessage {
    #[serde(rename = "Type")]
    kind: String,
    message_id: String,
    topic_arn: String,
    message: String,
    timestamp: String,
    subject: Option<String>,
    token: Option<String>,
    #[serde(rename = "SubscribeURL")]
    subscribe_url: Option<String>,
    #[serde(default)]
    signature_version: String,
    #[serde(default)]
    signature: String,
    #[serde(rename = "SigningCertURL", default)]
    certificate_url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnsError {
    /// The message is not from SNS, or was changed.
    #[error("{0}")]
    Refused(String),
    /// SNS does not answer. A later try may succeed.
    #[error("{0}")]
    Unavailable(String),
}

/// Which addresses belong to SNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnsHosts {
    /// `https://sns.<region>.amazonaws.com`
    Aws,
    /// A compatible service, by the start of its URLs.
    Endpoint(String),
}

impl SnsHosts {
    fn accept(&self, url: &str) -> bool {
        let Ok(url) = url.parse::<Url>() else { return false };
        match self {
            SnsHosts::Aws => {
                let host = url.host_str().unwrap_or_default();
                let region = host.strip_prefix("sns.").and_then(|rest| {
                    rest.strip_suffix(".amazonaws.com").or(rest.strip_suffix(".amazonaws.com.cn"))
                });
                let is_region = region.is_some_and(|region| {
                    !region.is_empty()
                        && region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                });
                is_region && url.scheme() == "https" && url.port().is_none() && url.username().is_empty()
            }
            SnsHosts::Endpoint(endpoint) => {
                endpoint.parse::<Url>().is_ok_and(|endpoint| endpoint.origin() == url.origin())
            }
        }
    }
}

/// Verifies messages with the certificates of SNS, which it keeps.
pub struct SnsVerifier {
    hosts: SnsHosts,
    certificates: Mutex<HashMap<String, Vec<u8>>>,
}

impl SnsVerifier {
    pub fn new(hosts: SnsHosts) -> SnsVerifier {
        SnsVerifier { hosts, certificates: Mutex::default() }
    }

    /// The objects that a notification names. A request for a subscription is confirmed, and names none.
    pub async fn accept(&self, message: &SnsMessage) -> Result<Vec<CreatedObject>, SnsError> {
        self.verify(message).await?;
        match message.kind.as_str() {
            "Notification" => parse_inner(&message.message).map_err(SnsError::Refused),
            "SubscriptionConfirmation" => {
                let url = message.subscribe_url.as_deref().unwrap_or_default();
                if !self.hosts.accept(url) {
                    return Err(SnsError::Refused("`SubscribeURL` is not an address of SNS".into()));
                }
                get(url).await?;
                tracing::info!(topic = message.topic_arn, "subscription of an SNS topic confirmed");
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }

    async fn verify(&self, message: &SnsMessage) -> Result<(), SnsError> {
        let refused = |why: &str| SnsError::Refused(why.to_owned());
        let algorithm = match message.signature_version.as_str() {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(refused("`SignatureVersion` must be 1 or 2")),
        };
        let signature =
            STANDARD.decode(&message.signature).map_err(|_| refused("`Signature` is not Base64"))?;
        let certificate = self.certificate(&message.certificate_url).await?;
        let key = rsa_key(&certificate).ok_or_else(|| refused("the certificate of SNS has no RSA key"))?;
        UnparsedPublicKey::new(algorithm, key)
            .verify(message.signed_text().as_bytes(), &signature)
            .map_err(|_| refused("the signature of SNS is wrong"))
    }

    /// The certificate as DER. Its address is what makes it trustworthy.
    async fn certificate(&self, url: &str) -> Result<Vec<u8>, SnsError> {
        if !self.hosts.accept(url) {
            return Err(SnsError::Refused("`SigningCertURL` is not an address of SNS".into()));
        }
        if let Some(known) = self.known().get(url) {
            return Ok(known.clone());
        }
        let pem = get(url).await?;
        let der = from_pem(&pem).ok_or_else(|| {
            SnsError::Unavailable("the answer at `SigningCertURL` is no certificate".into())
        })?;
        let mut known = self.known();
        if known.len() >= CERTIFICATES_MAX {
            known.clear();
        }
        known.insert(url.to_owned(), der.clone());
        Ok(der)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<u8>>> {
        self.certificates.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl SnsMessage {
    /// What SNS signs: these members, in this order, each name and value on a line.
    fn signed_text(&self) -> String {
        let mut text = String::new();
        let mut add = |name: &str, value: &str| {
            text.push_str(name);
            text.push('\n');
            text.push_str(value);
            text.push('\n');
        };
        add("Message", &self.message);
        add("MessageId", &self.message_id);
        if self.kind == "Notification" {
            if let Some(subject) = &self.subject {
                add("Subject", subject);
            }
        } else {
            add("SubscribeURL", self.subscribe_url.as_deref().unwrap_or_default());
        }
        add("Timestamp", &self.timestamp);
        if self.kind != "Notification" {
            add("Token", self.token.as_deref().unwrap_or_default());
        }
        add("TopicArn", &self.topic_arn);
        add("Type", &self.kind);
        text
    }
}

/// Redirects are refused: only addresses of SNS are trusted.
async fn get(url: &str) -> Result<Vec<u8>, SnsError> {
    let unavailable = |error: reqwest::Error| {
        SnsError::Unavailable(format!("SNS does not answer: {}", error.without_url()))
    };
    let client = reqwest::Client::builder()
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(unavailable)?;
    let mut answer = client.get(url).send().await.map_err(unavailable)?;
    if !answer.status().is_success() {
        return Err(SnsError::Unavailable(format!("SNS answered {}", answer.status())));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(unavailable)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > CERTIFICATE_BYTES_MAX {
            return Err(SnsError::Unavailable("SNS sent more than a certificate".into()));
        }
    }
    Ok(bytes)
}

fn from_pem(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?;
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let packed: String = body.split_whitespace().collect();
    STANDARD.decode(packed).ok()
}

/// The `RSAPublicKey` inside a certificate. Its public key info is a sequence of the algorithm and a bit string.
fn rsa_key(certificate: &[u8]) -> Option<Vec<u8>> {
    const RSA_WITHOUT_PARAMETERS: &[u8] =
        &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
    let der = CertificateDer::from(certificate);
    let info = EndEntityCert::try_from(&der).ok()?.subject_public_key_info();
    let at = info.windows(RSA_WITHOUT_PARAMETERS.len()).position(|bytes| bytes == RSA_WITHOUT_PARAMETERS)?;
    let bits = info.get(at + RSA_WITHOUT_PARAMETERS.len()..)?;
    // A bit string: its tag, its length (one byte, or a count of bytes and that many bytes), and no unused bits.
    let length = *bits.get(1)?;
    let skip = if length < 0x80 { 2 } else { 2 + usize::from(length & 0x7f) };
    match (bits.first()?, bits.get(skip)?) {
        (0x03, 0x00) => bits.get(skip + 1..).map(<[u8]>::to_vec),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = include_str!("testdata/certificate.pem");
    /// Signed with openssl, from the form that SNS documents.
    const SIGNED: [&str; 2] =
        [include_str!("testdata/notification_v1.json"), include_str!("testdata/notification_v2.json")];

    /// A verifier that already has the certificate.
    fn verifier() -> SnsVerifier {
        let verifier = SnsVerifier::new(SnsHosts::Aws);
        let url = "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-1.pem".to_owned();
        verifier.known().insert(url, from_pem(CERTIFICATE.as_bytes()).expect("a certificate"));
        verifier
    }

    fn message(json: &str) -> SnsMessage {
        serde_json::from_str(json).expect("an SNS message")
    }

    #[tokio::test]
    async fn signatures_of_both_versions_are_verified() {
        for json in SIGNED {
            let objects = verifier().accept(&message(json)).await.expect("signed");
            assert_eq!(objects, [CreatedObject { bucket: "b".into(), key: "uploads/t/u/1".into() }]);
            let changes: [fn(&mut SnsMessage); 5] = [
                |message| message.message.push(' '),
                |message| message.topic_arn.push('x'),
                |message| message.subject = Some("other".into()),
                |message| message.signature = STANDARD.encode([7; 256]),
                |message| message.kind = "UnsubscribeConfirmation".into(),
            ];
            for change in changes {
                let mut changed = message(json);
                change(&mut changed);
                let refused = verifier().accept(&changed).await;
                assert_eq!(refused, Err(SnsError::Refused("the signature of SNS is wrong".into())));
            }
        }
    }

    #[tokio::test]
    async fn a_certificate_from_elsewhere_is_refused_without_a_request() {
        let mut forged = message(SIGNED[1]);
        forged.certificate_url = "https://sns.us-west-2.amazonaws.com.example.com/a.pem".into();
        let refused = verifier().accept(&forged).await;
        assert_eq!(refused, Err(SnsError::Refused("`SigningCertURL` is not an address of SNS".into())));
    }

    #[test]
    fn addresses_of_sns() {
        for (url, expected) in [
            ("https://sns.us-east-1.amazonaws.com/a.pem", true),
            ("https://sns.cn-north-1.amazonaws.com.cn/?Action=ConfirmSubscription", true),
            ("http://sns.us-east-1.amazonaws.com/a.pem", false),
            ("https://sns.us-east-1.amazonaws.com:8443/a.pem", false),
            ("https://user@sns.us-east-1.amazonaws.com/a.pem", false),
            ("https://sns.evil.example.amazonaws.com/a.pem", false),
            ("https://bucket.s3.amazonaws.com/a.pem", false),
            ("https://sns.us-east-1.amazonaws.com.example.com/a.pem", false),
            ("https://169.254.169.254/latest", false),
            ("", false),
        ] {
            assert_eq!(SnsHosts::Aws.accept(url), expected, "{url}");
        }
        let own = SnsHosts::Endpoint("http://127.0.0.1:4566".into());
        assert!(own.accept("http://127.0.0.1:4566/a.pem"));
        assert!(
            !own.accept("http://127.0.0.1:4567/a.pem") && !own.accept("https://sns.us-east-1.amazonaws.com/")
        );
    }
}
