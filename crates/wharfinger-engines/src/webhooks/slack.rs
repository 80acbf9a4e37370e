//! Slack's incoming webhooks: plain text to one channel.

use serde_json::json;

use super::address::{Endpoint, EndpointError};
use super::post::{Poster, SendError};
use wharfinger_calls::faults::Faults;

pub struct Slack {
    poster: Poster,
}

impl Slack {
    /// Creates the client. Sends nothing.
    pub fn new(endpoint: Endpoint, faults: Faults) -> Result<Slack, EndpointError> {
        Ok(Slack { poster: Poster::new(endpoint, "slack", faults)? })
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.poster.endpoint()
    }

    pub async fn send(&self, text: &str, now: i64) -> Result<(), SendError> {
        // File names must not be read as markup, and Slack must not fetch links in them.
        let body = json!({
            "text": escaped(text), "mrkdwn": false, "unfurl_links": false, "unfurl_media": false,
        });
        self.poster.post(&[], body.to_string(), now).await
    }
}

/// Escapes Slack's markup. `<!channel>` in a file name would otherwise notify the whole channel.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_name_cannot_mention_the_channel() {
        assert_eq!(super::escaped("<!channel> & co"), "&lt;!channel&gt; &amp; co");
    }
}
