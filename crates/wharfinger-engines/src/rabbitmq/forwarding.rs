//! Forwards messages with a remaining delay to their next delay queue.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::time::timeout;

use super::backoff::Backoff;
use super::error::BrokerError;
use super::{DelayedMessage, Inner};

const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// A received message that is not returned to callers.
pub(super) struct Forward {
    pub(super) next: DelayedMessage,
    pub(super) acker: Acker,
}

/// All messages to forward. They are not stored in a future, so that `next` can be cancelled at any await.
#[derive(Default)]
pub(super) struct Forwards {
    pub(super) waiting: Vec<Forward>,
    running: Option<BoxFuture<'static, Vec<Forward>>>,
    backoff: Backoff,
}

impl Forwards {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_none()
    }

    /// Drops the messages whose connection was lost. The broker delivers them again.
    pub(super) fn drop_lost(&mut self) {
        self.waiting.retain(|forward| forward.acker.usable());
    }

    pub(super) async fn forward(&mut self, rabbit: &Arc<Inner>) -> Infallible {
        loop {
            if self.running.is_none() {
                if self.waiting.is_empty() {
                    pending::<Infallible>().await;
                }
                self.backoff.wait().await;
                let batch = std::mem::take(&mut self.waiting);
                self.running = Some(Box::pin(forward(Arc::clone(rabbit), batch)));
            }
            if let Some(running) = &mut self.running {
                let failed = running.await;
                self.running = None;
                if failed.is_empty() {
                    self.backoff.succeed();
                } else {
                    self.backoff.fail();
                    self.waiting.extend(failed);
                    self.drop_lost();
                }
            }
        }
    }
}

/// Publishes each message and then acknowledges it: a crash in between duplicates a message but never loses it. Returns
/// the messages that could not be published. They stay unacknowledged, because a requeue would count towards the
/// delivery limit.
async fn forward(rabbit: Arc<Inner>, forwards: Vec<Forward>) -> Vec<Forward> {
    let (messages, ackers): (Vec<_>, Vec<_>) =
        forwards.into_iter().map(|Forward { next, acker }| (next, acker)).unzip();
    let outcomes = rabbit.publisher.publish_delayed(&messages).await;
    let mut failed = Vec::new();
    for ((next, acker), outcome) in messages.into_iter().zip(ackers).zip(outcomes) {
        match outcome {
            Ok(()) => {
                if let Err(error) = settle(&acker, true).await {
                    tracing::debug!(%error, "cannot acknowledge a forwarded message, it will be delivered twice");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot forward a delayed message, trying again");
                failed.push(Forward { next, acker });
            }
        }
    }
    failed
}

/// Acknowledges a message, or moves it to the dead letters.
pub(super) async fn settle(acker: &Acker, acknowledge: bool) -> Result<(), BrokerError> {
    let settling = async {
        if acknowledge {
            acker.ack(BasicAckOptions::default()).await
        } else {
            acker.nack(BasicNackOptions { requeue: false, ..BasicNackOptions::default() }).await
        }
    };
    match timeout(ACK_TIMEOUT, settling).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(BrokerError::Unavailable(
            "the connection was lost, the message will be delivered again".to_owned(),
        )),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(BrokerError::late("acknowledging a message")),
    }
}
