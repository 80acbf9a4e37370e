//! Signed URLs of the local store: an HMAC covers everything that the URL permits.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Deserialize;
use sha2::Sha256;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::key::{ObjectKey, encode_part};

use super::super::{Disposition, GetGrant, PartGrant, PutGrant};
use super::PartPlace;

#[derive(Clone)]
pub struct SigningKey(Vec<u8>);

/// The query of a signed URL, as a client sends it back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedQuery {
    pub expires: UnixMs,
    /// Uploads: the exact length.
    pub size: Option<u64>,
    #[serde(rename = "type")]
    pub content_type: Option<String>,
    pub sha256: Option<String>,
    /// Downloads: the ETag that the object must have.
    pub etag: Option<String>,
    pub name: Option<String>,
    /// Downloads: a browser shows the file instead of saving it.
    pub inline: Option<bool>,
    /// Uploads of one part: which upload, which part, and where the part starts in the object.
    #[serde(rename = "uploadId")]
    pub upload_id: Option<String>,
    #[serde(rename = "partNumber")]
    pub part_number: Option<u32>,
    pub offset: Option<u64>,
    pub sig: String,
}

impl SignedQuery {
    fn unsigned(expires: UnixMs) -> SignedQuery {
        SignedQuery {
            expires,
            size: None,
            content_type: None,
            sha256: None,
            etag: None,
            name: None,
            inline: None,
            upload_id: None,
            part_number: None,
            offset: None,
            sig: String::new(),
        }
    }

    /// The part that this URL uploads. None: it uploads a whole object.
    pub fn part(&self) -> Option<PartPlace> {
        Some(PartPlace {
            upload_id: self.upload_id.clone()?,
            number: self.part_number?,
            offset: self.offset?,
        })
    }

    pub(super) fn to_query_string(&self) -> String {
        let mut query = format!("expires={}", self.expires);
        if let Some(size) = self.size {
            let _ = write!(query, "&size={size}");
        }
        for (name, value) in [
            ("type", &self.content_type),
            ("sha256", &self.sha256),
            ("etag", &self.etag),
            ("name", &self.name),
        ] {
            if let Some(value) = value {
                let _ = write!(query, "&{name}={}", encode_part(value));
            }
        }
        if let Some(inline) = self.inline {
            let _ = write!(query, "&inline={inline}");
        }
        if let Some(PartPlace { upload_id, number, offset }) = self.part() {
            let upload_id = encode_part(&upload_id);
            let _ = write!(query, "&uploadId={upload_id}&partNumber={number}&offset={offset}");
        }
        let _ = write!(query, "&sig={}", self.sig);
        query
    }
}

impl SigningKey {
    pub fn new(secret: &[u8]) -> SigningKey {
        SigningKey(secret.to_vec())
    }

    pub(super) fn sign_put(&self, grant: &PutGrant) -> SignedQuery {
        let query = SignedQuery {
            size: Some(grant.size),
            content_type: grant.content_type.clone(),
            sha256: grant.checksum_sha256.clone(),
            ..SignedQuery::unsigned(grant.lifetime.expires_at)
        };
        self.signed("PUT", &grant.key, query)
    }

    pub(super) fn sign_part(&self, grant: &PartGrant) -> SignedQuery {
        let query = SignedQuery {
            size: Some(grant.size),
            upload_id: Some(grant.upload_id.clone()),
            part_number: Some(grant.number),
            offset: Some(grant.offset),
            ..SignedQuery::unsigned(grant.lifetime.expires_at)
        };
        self.signed("PUT", &grant.key, query)
    }

    pub(super) fn sign_get(&self, grant: &GetGrant) -> SignedQuery {
        let query = SignedQuery {
            content_type: grant.content_type.clone(),
            etag: Some(grant.pin.etag.clone()),
            name: Some(grant.file_name.clone()),
            inline: (grant.disposition == Disposition::Inline).then_some(true),
            ..SignedQuery::unsigned(grant.lifetime.expires_at)
        };
        self.signed("GET", &grant.key, query)
    }

    fn signed(&self, method: &str, key: &ObjectKey, query: SignedQuery) -> SignedQuery {
        let sig = URL_SAFE_NO_PAD.encode(self.mac(method, key, &query).finalize().into_bytes());
        SignedQuery { sig, ..query }
    }

    /// True if this key signed the query for this method and object. It does not check the expiry.
    pub fn verify(&self, method: &str, key: &ObjectKey, query: &SignedQuery) -> bool {
        let Ok(given) = URL_SAFE_NO_PAD.decode(&query.sig) else { return false };
        self.mac(method, key, query).verify_slice(&given).is_ok()
    }

    fn mac(&self, method: &str, key: &ObjectKey, query: &SignedQuery) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(b"wharfinger blob url v1");
        let expires = query.expires.to_string();
        let size = query.size.map(|size| size.to_string());
        let inline = query.inline.map(|inline| inline.to_string());
        let part_number = query.part_number.map(|number| number.to_string());
        let offset = query.offset.map(|offset| offset.to_string());
        let whole = [
            Some(method),
            Some(key.as_str()),
            Some(expires.as_str()),
            size.as_deref(),
            query.content_type.as_deref(),
            query.sha256.as_deref(),
            query.etag.as_deref(),
            query.name.as_deref(),
            inline.as_deref(),
        ];
        // Only where one of them is present, so that URLs of whole objects stay valid that an earlier version signed.
        let of_part = [query.upload_id.as_deref(), part_number.as_deref(), offset.as_deref()];
        let of_part = if of_part == [None; 3] { &[][..] } else { &of_part };
        // Each field has its length before it, so that different grants have different texts. Absent differs from empty.
        for field in whole.iter().chain(of_part) {
            match field {
                None => mac.update(b"-"),
                Some(text) => {
                    mac.update(b"+");
                    mac.update(&(text.len() as u64).to_be_bytes());
                    mac.update(text.as_bytes());
                }
            }
        }
        mac
    }
}
