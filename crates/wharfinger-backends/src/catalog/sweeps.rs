//! When each sweep last ran, and what came of it.

use wharfinger_lifecycle::UnixMs;

use super::Catalog;
use super::error::CatalogError;
use super::sql::{Tx, args};
use super::writer::{Verdict, Write};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepRecord {
    pub name: &'static str,
    pub started_at: UnixMs,
    pub ended_at: UnixMs,
    /// A JSON object.
    pub result: Option<String>,
    pub error: Option<String>,
}

impl Write for SweepRecord {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        tx.run(
            "INSERT INTO sweeps (name, last_start_at, last_end_at, last_result, last_error) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO UPDATE SET \
             last_start_at = excluded.last_start_at, last_end_at = excluded.last_end_at, \
             last_result = excluded.last_result, last_error = excluded.last_error",
            args![self.name, self.started_at, self.ended_at, self.result.as_deref(), self.error.as_deref()],
        )
        .await?;
        Ok(Verdict::Commit(()))
    }
}

impl Catalog {
    pub async fn record_sweep(&self, record: SweepRecord) -> Result<(), CatalogError> {
        self.write(record).await
    }

    pub async fn sweep_ended_at(&self, name: &'static str) -> Result<Option<UnixMs>, CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row("SELECT last_end_at FROM sweeps WHERE name = $1", args![name])
            .await?;
        row.map_or(Ok(None), |row| row.maybe_int("last_end_at"))
    }
}
