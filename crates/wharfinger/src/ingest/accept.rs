//! Accepts request bodies with events: all events of a body or none.

use wharfinger_events::body::{self, BodyError, Limits, LineBatch};
use wharfinger_events::encoding::{Encoding, InflateError, inflate};
use wharfinger_lifecycle::id::TenantId;

use super::{EVENT_BYTES_MAX, Ingest, IngestError};
use crate::config::Ack;
use crate::core::Caller;
use crate::memory_budget::Reservation;

/// Larger bodies are parsed on a blocking thread.
const INLINE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("the body {0}")]
    Encoding(#[from] InflateError),
}

/// A body while it is received, with its share of the memory budget.
pub struct IncomingBody {
    bytes: Vec<u8>,
    reservation: Reservation,
    bytes_max: usize,
}

impl IncomingBody {
    /// Allocates memory for the announced length. The body may be longer or shorter.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes.min(self.bytes_max));
    }

    pub fn add(&mut self, chunk: &[u8]) -> Result<(), AcceptError> {
        if self.bytes.len() + chunk.len() > self.bytes_max {
            return Err(InflateError::TooLarge.into());
        }
        if !self.reservation.grow(chunk.len()) {
            return Err(IngestError::MemoryFull.into());
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

impl Ingest {
    pub fn bytes_max(&self) -> usize {
        self.settings.inflated_bytes_max
    }

    /// Starts a body. Rejected before a byte is read if the tenant uses more than its share of the spool.
    pub fn incoming(&self, tenant: &TenantId) -> Result<IncomingBody, AcceptError> {
        // With `INGEST_ACK=stored` no events wait in the spool.
        if self.settings.ack != Ack::Stored && self.spool.is_over_share(tenant.as_str()) {
            return Err(IngestError::OverTenantShare.into());
        }
        let reservation = self.budget.reservation_for(tenant.as_str());
        Ok(IncomingBody { bytes: Vec::new(), reservation, bytes_max: self.bytes_max() })
    }

    /// Returns the number of events when they are stored as `INGEST_ACK` says.
    pub async fn accept(
        self: &std::sync::Arc<Self>,
        caller: &Caller,
        encoding: Encoding,
        incoming: IncomingBody,
    ) -> Result<usize, AcceptError> {
        let is_small = incoming.bytes.len() <= INLINE_BYTES_MAX && encoding == Encoding::Identity;
        let tenant = caller.tenant.to_string();
        let (pieces, reservation) = match is_small {
            true => self.read(&tenant, encoding, incoming)?,
            false => {
                let ingest = self.clone();
                let reading = tokio::task::spawn_blocking(move || ingest.read(&tenant, encoding, incoming));
                reading.await.map_err(|_| IngestError::Stopping)??
            }
        };
        let events = pieces.iter().map(|piece| piece.events).sum();
        self.append(pieces, reservation).await?;
        Ok(events)
    }

    fn read(
        &self,
        tenant: &str,
        encoding: Encoding,
        mut incoming: IncomingBody,
    ) -> Result<(Vec<LineBatch>, Reservation), AcceptError> {
        if encoding != Encoding::Identity {
            let mut reservation = self.budget.reservation_for(tenant);
            let inflated =
                inflate(encoding, &incoming.bytes, self.bytes_max(), |more| reservation.grow(more)).map_err(
                    |error| match error {
                        InflateError::NoMemory => AcceptError::from(IngestError::MemoryFull),
                        other => other.into(),
                    },
                )?;
            incoming = IncomingBody { bytes: inflated, reservation, ..incoming };
        }
        let mut reservation = self.budget.reservation_for(tenant);
        let reserve = &mut |bytes| reservation.grow(bytes);
        let pieces = body::read(&incoming.bytes, &self.envelope(tenant), &self.limits(), reserve)?;
        reservation.shrink_to(pieces.iter().map(|piece| piece.lines.len()).sum());
        Ok((pieces, reservation))
    }

    /// Appends events of this program. Each is a JSON object.
    pub async fn append_own(&self, tenant: &TenantId, events: &[String]) -> Result<(), AcceptError> {
        let body = events.join("\n");
        // Our own events may be larger than the configured limit for clients.
        let limits =
            Limits { event_bytes_max: EVENT_BYTES_MAX, lines_bytes_max: usize::MAX, ..self.limits() };
        let mut reservation = self.budget.reservation();
        let reserve = &mut |bytes| reservation.grow(bytes);
        let pieces = body::read(body.as_bytes(), &self.envelope(tenant.as_str()), &limits, reserve)?;
        Ok(self.append(pieces, reservation).await?)
    }
}
