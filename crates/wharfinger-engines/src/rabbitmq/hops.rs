//! Messages that came off a step with some of their delay left, on their way to the next one.

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
use super::{Delayed, Inner};

const ACK_TIME: Duration = Duration::from_secs(5);

/// A message that nobody outside is to see.
pub(super) struct Hop {
    /// As it goes on. None for one that is not ours, and is refused.
    pub(super) next: Option<Delayed>,
    pub(super) acker: Acker,
}

/// All that is to be sent on. It lives here and not in a future, so that `next` can be abandoned at any await.
#[derive(Default)]
pub(super) struct Hops {
    pub(super) waiting: Vec<Hop>,
    under_way: Option<BoxFuture<'static, Vec<Hop>>>,
    backoff: Backoff,
}

impl Hops {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_none()
    }

    /// Those whose connection is gone come again by themselves.
    pub(super) fn forget(&mut self) {
        self.waiting.retain(|hop| hop.acker.usable());
    }

    pub(super) async fn send_on(&mut self, rabbit: &Arc<Inner>) -> Infallible {
        loop {
            if self.under_way.is_none() {
                if self.waiting.is_empty() {
                    pending::<Infallible>().await;
                }
                self.backoff.wait().await;
                let batch = std::mem::take(&mut self.waiting);
                self.under_way = Some(Box::pin(send_on(Arc::clone(rabbit), batch)));
            }
            if let Some(under_way) = &mut self.under_way {
                let failed = under_way.await;
                self.under_way = None;
                if failed.is_empty() {
                    self.backoff.succeed();
                } else {
                    self.backoff.fail();
                    self.waiting.extend(failed);
                    self.forget();
                }
            }
        }
    }
}

/// First sent on, then acknowledged: between the two there are two of it, never none. Answers with those that
/// could not be sent on. They are held rather than given back, for giving back counts towards the dead letters.
async fn send_on(rabbit: Arc<Inner>, hops: Vec<Hop>) -> Vec<Hop> {
    let (mut messages, mut ackers) = (Vec::new(), Vec::new());
    for Hop { next, acker } in hops {
        if let Some(next) = next {
            messages.push(next);
            ackers.push(acker);
        } else if let Err(error) = settle(&acker, false).await {
            tracing::debug!(%error, "a message that was refused comes again");
        }
    }
    let outcomes = rabbit.publisher.publish_delayed(&messages).await;
    let mut failed = Vec::new();
    for ((next, acker), outcome) in messages.into_iter().zip(ackers).zip(outcomes) {
        match outcome {
            Ok(()) => {
                if let Err(error) = settle(&acker, true).await {
                    tracing::debug!(%error, "a message that was sent on comes twice");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a message could not be sent on; it is tried again");
                failed.push(Hop { next: Some(next), acker });
            }
        }
    }
    failed
}

/// Tells the broker that a message is done with, or that it is a dead letter.
pub(super) async fn settle(acker: &Acker, done: bool) -> Result<(), BrokerError> {
    let settling = async {
        if done {
            acker.ack(BasicAckOptions::default()).await
        } else {
            acker.nack(BasicNackOptions { requeue: false, ..BasicNackOptions::default() }).await
        }
    };
    match timeout(ACK_TIME, settling).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => {
            Err(BrokerError::Unavailable("the connection was lost; the message comes again".to_owned()))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(BrokerError::late("an acknowledgement")),
    }
}
