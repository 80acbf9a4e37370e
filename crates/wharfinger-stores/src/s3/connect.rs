//! Creates the clients from the settings: the usual credential chain, the address, timeouts and retries.

use std::sync::Arc;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Credentials, RequestChecksumCalculation, ResponseChecksumValidation};
use aws_smithy_http_client::tls;
use aws_smithy_runtime_api::client::http::SharedHttpClient;

use super::skew::DateReader;
use crate::BlobError;
use crate::skew::Skew;

/// The bucket and the credentials. Missing options come from the usual `AWS_*` variables, profiles and roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Options {
    pub bucket: String,
    /// The prefix of every key. Empty, or it ends in a slash.
    pub prefix: String,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    /// The store's address in URLs for clients.
    pub public_endpoint: Option<String>,
    /// Whether the bucket's name is part of the host name. Default: only without an endpoint, which means AWS itself.
    pub virtual_host: Option<bool>,
    pub credentials: Option<S3Credentials>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct S3Credentials {
    pub access_key: String,
    pub secret_key: String,
    pub session_token: Option<String>,
}

impl std::fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("S3Credentials")
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the first byte of an answer. Completing an upload of thousands of parts takes long.
const READ_TIMEOUT: Duration = Duration::from_secs(50);
const ATTEMPTS_MAX: u32 = 3;

/// The HTTP client of the SDK, with the TLS provider of the process.
pub fn http_client() -> SharedHttpClient {
    wharfinger_calls::tls::install_provider();
    aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .build_https()
}

/// A client for the program's own calls, and one that signs for clients.
pub(super) async fn clients(options: &S3Options, skew: &Arc<Skew>) -> Result<(Client, Client), BlobError> {
    let http = http_client();
    let timeouts =
        TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT).build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .timeout_config(timeouts)
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS_MAX));
    if let Some(region) = &options.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(endpoint) = &options.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(given) = &options.credentials {
        let session = given.session_token.clone();
        loader = loader.credentials_provider(Credentials::new(
            &given.access_key,
            &given.secret_key,
            session,
            None,
            "settings",
        ));
    }
    let shared = loader.load().await;
    let compatible = shared.endpoint_url().is_some();
    if shared.region().is_none() && !compatible {
        return Err(BlobError::Refused("no region: set AWS_REGION to the bucket's region".into()));
    }
    let mut config = aws_sdk_s3::config::Builder::from(&shared)
        // Compatible stores do not know the checksums that the SDK would add by default.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .force_path_style(!options.virtual_host.unwrap_or(!compatible))
        .interceptor(DateReader(skew.clone()));
    if shared.region().is_none() {
        config = config.region(Region::new("us-east-1"));
    }
    let client = Client::from_conf(config.clone().build());
    let public = match &options.public_endpoint {
        Some(public) => Client::from_conf(config.endpoint_url(public).build()),
        None => client.clone(),
    };
    Ok((client, public))
}
