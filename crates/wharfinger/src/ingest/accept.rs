//! What clients send, taken whole or not at all.

use wharfinger_events::body::{self, BadBody, Limits, Piece};
use wharfinger_events::encoding::{Encoding, NotInflated, inflate};
use wharfinger_lifecycle::id::TenantId;

use super::{EVENT_BYTES_MAX, Ingest, NotTaken};
use crate::config::Ack;
use crate::core::Caller;
use crate::memory_budget::Hold;

/// Larger bodies are looked through beside the threads that answer.
const INLINE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    #[error(transparent)]
    Body(#[from] BadBody),
    #[error("the body {0}")]
    Encoding(#[from] NotInflated),
}

/// A body as it comes in, and the room that it takes.
pub struct Incoming {
    bytes: Vec<u8>,
    hold: Hold,
    bytes_max: usize,
}

impl Incoming {
    /// So much is announced; more or less may come.
    pub fn expect(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes.min(self.bytes_max));
    }

    pub fn add(&mut self, chunk: &[u8]) -> Result<(), Refusal> {
        if self.bytes.len() + chunk.len() > self.bytes_max {
            return Err(NotInflated::TooLarge.into());
        }
        if !self.hold.grow(chunk.len()) {
            return Err(NotTaken::NoRoom.into());
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

impl Ingest {
    pub fn bytes_max(&self) -> usize {
        self.settings.inflated_bytes_max
    }

    /// Refused before a byte is read, where the tenant's events take more than their share of the spool.
    pub fn incoming(&self, tenant: &TenantId) -> Result<Incoming, Refusal> {
        // Events that are answered when stored never wait in the spool.
        if self.settings.ack != Ack::Stored && self.spool.is_over_share(tenant.as_str()) {
            return Err(NotTaken::OverShare.into());
        }
        let hold = self.budget.hold_for(tenant.as_str());
        Ok(Incoming { bytes: Vec::new(), hold, bytes_max: self.bytes_max() })
    }

    /// Answers how many events there were, when they are where the settings promise them to be.
    pub async fn accept(
        self: &std::sync::Arc<Self>,
        caller: &Caller,
        encoding: Encoding,
        incoming: Incoming,
    ) -> Result<usize, Refusal> {
        let is_small = incoming.bytes.len() <= INLINE_BYTES_MAX && encoding == Encoding::Identity;
        let tenant = caller.tenant.to_string();
        let (pieces, hold) = match is_small {
            true => self.read(&tenant, encoding, incoming)?,
            false => {
                let ingest = self.clone();
                let reading = tokio::task::spawn_blocking(move || ingest.read(&tenant, encoding, incoming));
                reading.await.map_err(|_| NotTaken::Stopping)??
            }
        };
        let events = pieces.iter().map(|piece| piece.events).sum();
        self.append(pieces, hold).await?;
        Ok(events)
    }

    fn read(
        &self,
        tenant: &str,
        encoding: Encoding,
        mut incoming: Incoming,
    ) -> Result<(Vec<Piece>, Hold), Refusal> {
        if encoding != Encoding::Identity {
            let mut room = self.budget.hold_for(tenant);
            let inflated = inflate(encoding, &incoming.bytes, self.bytes_max(), |more| room.grow(more))
                .map_err(|error| match error {
                    NotInflated::NoRoom => Refusal::from(NotTaken::NoRoom),
                    other => other.into(),
                })?;
            incoming = Incoming { bytes: inflated, hold: room, ..incoming };
        }
        let mut hold = self.budget.hold_for(tenant);
        let room = &mut |bytes| hold.grow(bytes);
        let pieces = body::read(&incoming.bytes, &self.envelope(tenant), &self.limits(), room)?;
        hold.shrink_to(pieces.iter().map(|piece| piece.lines.len()).sum());
        Ok((pieces, hold))
    }

    /// Events of our own: each a JSON object.
    pub async fn keep(&self, tenant: &TenantId, events: &[String]) -> Result<(), Refusal> {
        let body = events.join("\n");
        // What is let in from outside may be less than what we say ourselves.
        let limits =
            Limits { event_bytes_max: EVENT_BYTES_MAX, lines_bytes_max: usize::MAX, ..self.limits() };
        let mut hold = self.budget.hold();
        let room = &mut |bytes| hold.grow(bytes);
        let pieces = body::read(body.as_bytes(), &self.envelope(tenant.as_str()), &limits, room)?;
        Ok(self.append(pieces, hold).await?)
    }
}
