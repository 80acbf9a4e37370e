//! What commands need to call a running server: its address, a token, and errors in words.

use std::time::Duration;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::{Failure, token};
use crate::clock::Clock;
use crate::config::{Flags, Settings, client_env};

#[derive(Args)]
pub(super) struct RemoteArguments {
    /// The server's address (WHARFINGER_URL) [default: from the settings]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The access token (WHARFINGER_TOKEN) [default: created with the key of the local server]
    #[arg(long)]
    token: Option<String>,
    /// The tenant, if the token is created here
    #[arg(long, default_value = "default")]
    tenant: String,
    /// The user, if the token is created here
    #[arg(long, default_value = "local")]
    user: String,
}

/// The address of a server and a token for it.
pub(super) struct Access {
    pub(super) server: String,
    pub(super) token: String,
    /// It was created here, so it can be created again.
    pub(super) is_own_token: bool,
}

const TOKEN_MS: i64 = 24 * 3_600_000;

impl RemoteArguments {
    /// From flags and environment, else those of the server with these settings. A token that is created here has this role.
    pub(super) fn access(&self, flags: &Flags, role: &str) -> Result<Access, Failure> {
        let server = self.server.clone().or_else(|| client_env("WHARFINGER_URL"));
        let given = self.token.clone().or_else(|| client_env("WHARFINGER_TOKEN"));
        let is_own_token = given.is_none();
        let access = |server: String, token| {
            let server = server.trim_end_matches('/').to_owned();
            Ok(Access { server, token, is_own_token })
        };
        if let (Some(server), Some(token)) = (&server, &given) {
            return access(server.clone(), token.clone());
        }
        let settings = Settings::load(flags)?;
        let server = server
            .or_else(|| settings.public_url.clone())
            .unwrap_or_else(|| format!("http://{}", settings.listen.replace("0.0.0.0", "127.0.0.1")));
        let token = match given {
            Some(token) => token,
            None => {
                if !settings.data_dir.is_dir() {
                    return Err(Failure::Usage(format!(
                        "no token: use --token or WHARFINGER_TOKEN, or run this in the server's folder ({} was not found here)",
                        settings.data_dir.display()
                    )));
                }
                let caller = token::caller(&self.tenant, &self.user, role)?;
                token::mint(&settings, &caller, Clock::system().now() + TOKEN_MS)?
            }
        };
        access(server, token)
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CALL_TIMEOUT: Duration = Duration::from_secs(90);

/// Why a call failed.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// Another try may help.
    Retryable(String),
    /// The server refused the call.
    Refused { status: StatusCode, message: String },
}

/// A successful answer, and the server's time in milliseconds, if it sent one.
pub(super) struct Answer {
    pub(super) body: Value,
    pub(super) server_time: Option<i64>,
}

/// Reads lists of a server.
pub(super) struct Reader {
    http: reqwest::Client,
    access: Access,
}

impl Reader {
    pub(super) fn new(access: Access) -> Result<Reader, Failure> {
        let http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).timeout(CALL_TIMEOUT).build();
        Ok(Reader { http: http.map_err(super::failed)?, access })
    }

    pub(super) fn server(&self) -> &str {
        &self.access.server
    }

    pub(super) async fn get(&self, path: &str) -> Result<Answer, CallFailure> {
        let failed = |error| CallFailure::Retryable(connection_error(&error, Peer::Server));
        let request = self.http.request(Method::GET, format!("{}{path}", self.access.server));
        let response = request.bearer_auth(&self.access.token).send().await.map_err(failed)?;
        let status = response.status();
        let date = response.headers().get(reqwest::header::DATE).and_then(|date| date.to_str().ok());
        let server_time = date.and_then(|date| chrono::DateTime::parse_from_rfc2822(date).ok());
        let server_time = server_time.map(|at| at.timestamp_millis());
        let text = response.text().await.map_err(failed)?;
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() && body.is_object() {
            return Ok(Answer { body, server_time });
        }
        if status.is_success() {
            let message = format!("{} is not a Wharfinger server", self.access.server);
            return Err(CallFailure::Refused { status, message });
        }
        let detail = body["detail"].as_str().unwrap_or(text.as_str());
        let message = format!("{} {}", status.as_u16(), detail.chars().take(300).collect::<String>());
        let is_retryable = status.is_server_error()
            || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
        Err(match is_retryable {
            true => CallFailure::Retryable(message),
            false => CallFailure::Refused { status, message },
        })
    }
}

#[derive(Clone, Copy)]
pub(super) enum Peer {
    Server,
    Store,
}

/// Without the path of the URL: that of a store is a secret.
pub(super) fn connection_error(error: &reqwest::Error, peer: Peer) -> String {
    let address = error.url().map(|url| url.origin().ascii_serialization()).unwrap_or_default();
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let is_refused = cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
    match peer {
        Peer::Server if error.is_connect() && is_refused => {
            format!("No server at {address}. Is it running? Use --server URL.")
        }
        Peer::Server if error.is_connect() => {
            format!("Cannot connect to {address}: {cause}. Check --server.")
        }
        Peer::Store if error.is_connect() => format!("Cannot connect to the store at {address}: {cause}"),
        Peer::Server | Peer::Store if error.is_timeout() => format!("No answer from {address} in time"),
        Peer::Server | Peer::Store => format!("The connection to {address} was lost: {cause}"),
    }
}
