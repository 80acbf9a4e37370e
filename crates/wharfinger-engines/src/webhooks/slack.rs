//! Slack's incoming webhooks: plain text to one channel.

use serde_json::json;

use super::address::{Endpoint, EndpointError};
use super::post::{Poster, SendError};
use wharfinger_calls::faults::Faults;

pub struct Slack {
    poster: Poster,
}

impl Slack {
    /// Sends nothing yet.
    pub fn new(endpoint: Endpoint, faults: Faults) -> Result<Slack, EndpointError> {
        Ok(Slack { poster: Poster::new(endpoint, "slack", faults)? })
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.poster.endpoint()
    }

    pub async fn send(&self, text: &str, now: i64) -> Result<(), SendError> {
        // Names of files are not to be markup, and links in them are not to be visited.
        let body = json!({
            "text": escaped(text), "mrkdwn": false, "unfurl_links": false, "unfurl_media": false,
        });
        self.poster.post(&[], body.to_string(), now).await
    }
}

/// The three characters that begin markup there: `<!channel>` in a file's name would call everybody.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_calls_nobody() {
        assert_eq!(super::escaped("<!channel> & co"), "&lt;!channel&gt; &amp; co");
    }
}
