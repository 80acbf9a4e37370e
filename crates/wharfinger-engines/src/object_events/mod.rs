//! Messages of object stores that say which objects were created: from S3 and compatible stores (bare, in SNS, by
//! EventBridge), Google Pub/Sub and Azure Event Grid. A message is only a hint: the receiver asks the store itself.

mod messages;
mod sns;

pub use messages::{CreatedObject, Message, parse};
pub use sns::{SnsError, SnsHosts, SnsMessage, SnsVerifier};
