//! Sends messages to webhook endpoints (in the format of Standard Webhooks) and to Slack.

mod address;
mod post;
mod signing;
mod slack;

pub use address::{Endpoint, EndpointError, check_resolves, is_public};
pub use post::SendError;
pub use signing::{SecretError, Secrets};
pub use slack::Slack;

use uuid::Uuid;

use post::Poster;
use wharfinger_calls::faults::Faults;

/// One message. All attempts have the same id and body; the time is the time of the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: Uuid,
    /// Seconds since 1970.
    pub sent_at: i64,
    /// JSON. The signature covers exactly these bytes.
    pub body: String,
}

/// An endpoint that receives signed messages.
pub struct Webhook {
    poster: Poster,
    secrets: Secrets,
}

impl Webhook {
    /// Creates the client. Sends nothing.
    pub fn new(endpoint: Endpoint, secrets: Secrets, faults: Faults) -> Result<Webhook, EndpointError> {
        Ok(Webhook { poster: Poster::new(endpoint, "webhook", faults)?, secrets })
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.poster.endpoint()
    }

    /// Sends a message. Ok: the receiver confirmed it.
    pub async fn send(&self, message: &Message) -> Result<(), SendError> {
        let (id, sent_at) = (message.id.to_string(), message.sent_at.to_string());
        let signatures = self.secrets.sign(&id, &sent_at, message.body.as_bytes());
        let headers = [("webhook-id", id), ("webhook-timestamp", sent_at), ("webhook-signature", signatures)];
        self.poster.post(&headers, message.body.clone(), message.sent_at).await
    }
}
