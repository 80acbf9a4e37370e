//! `pending_cleanups`: objects to delete. A row is written by the transaction that makes its object unreachable, or by
//! the scan that finds an orphan. It is removed after the store has reported the object as deleted.

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::{CleanupId, TenantId};
use wharfinger_lifecycle::key::ObjectKey;
use wharfinger_lifecycle::limits::{ERROR_TEXT_BYTES_MAX, clip};

use crate::Catalog;
use crate::OutboxTargets;
use crate::RowSettings;
use crate::Scope;
use crate::cleanups::deletion_log;
use crate::database::sql::signed;
use crate::database::sql::{Arg, Row, Tx, args, places};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::fresh_id;
use crate::leases::engine::{self, Claim, Claimed};
use crate::leases::tables::CLEANUPS;
use crate::orphans::blobs::{REASON_ORPHAN, delete_cleaned};
use crate::outbox::lines;
use crate::unreadable::{SPARE_ROWS, Table};

/// How long an exhausted row waits between its attempts.
pub const EXHAUSTED_RETRY_MS: i64 = 86_400_000;

/// A cleanup that is not written yet, with the file whose object is deleted.
pub(crate) struct NewCleanup {
    pub(crate) id: CleanupId,
    pub(crate) file: File,
    /// Who ordered the delete.
    pub(crate) ordered_by: Option<String>,
    pub(crate) storage_type: &'static str,
    pub(crate) max_attempts: u32,
}

/// The last four values are the same for all new rows.
const INSERT: &str = "INSERT INTO pending_cleanups (id, file_path, storage_type, reason, tenant_id, \
    document_id, size, max_attempts, created_at, next_attempt_at, finish_at, in_parts, ordered_by, attempts, \
    exhausted, lease_token, lease_until) VALUES ";

impl NewCleanup {
    pub(crate) fn of(file: File, ordered_by: Option<&str>, rows: &RowSettings, now: UnixMs) -> NewCleanup {
        let (storage_type, max_attempts) = (rows.storage_type, rows.cleanup_max_attempts);
        let ordered_by = ordered_by.map(str::to_owned);
        NewCleanup { id: CleanupId(fresh_id(now)), file, ordered_by, storage_type, max_attempts }
    }

    fn args(&self, reason: &str, finish_at: UnixMs, now: UnixMs) -> Vec<Arg> {
        let file = &self.file;
        args![
            self.id.to_string(),
            file.key.as_str(),
            self.storage_type,
            reason,
            file.tenant.as_str(),
            file.id.to_string(),
            signed(file.size),
            i64::from(self.max_attempts),
            now,
            now,
            finish_at,
            i64::from(file.part_size.is_some()),
            self.ordered_by.as_deref(),
        ]
    }
}

const COLUMNS: usize = 13;

/// Writes cleanups, each with its reason and the time from which it can finish, in few statements.
pub(crate) async fn insert_all(
    tx: &mut Tx<'_>,
    cleanups: &[(NewCleanup, &str, UnixMs)],
    now: UnixMs,
) -> Result<(), CatalogError> {
    for some in cleanups.chunks(tx.dialect().rows_max()) {
        let row = |n: usize| format!("({}, 0, 0, 0, 0)", places(1 + n * COLUMNS, COLUMNS));
        let rows: Vec<String> = (0..some.len()).map(row).collect();
        let args = some.iter().flat_map(|(cleanup, reason, finish_at)| cleanup.args(reason, *finish_at, now));
        tx.run_built(format!("{INSERT}{}", rows.join(", ")), args.collect()).await?;
    }
    Ok(())
}

/// A claimed cleanup, valid while its token is the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedCleanup {
    pub id: CleanupId,
    pub token: i64,
    pub key: ObjectKey,
    /// None: the key names no tenant.
    pub tenant: Option<TenantId>,
    pub reason: String,
    pub attempts: u32,
    pub max_attempts: u32,
    pub finish_at: UnixMs,
    /// An unfinished multipart upload is to be aborted, too.
    pub in_parts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupOutcome {
    /// The store reports the object as deleted or missing.
    Deleted,
    /// The store refused this delete: counts as an attempt.
    Refused { error: String, retry_at: UnixMs },
    /// The store did not answer: does not count as an attempt.
    StoreDown { error: String, retry_at: UnixMs },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupTotals {
    pub done: u64,
    pub failed: u64,
    pub exhausted: u64,
    /// How many of the done ones were orphans.
    pub orphans: u64,
}

struct ClaimCleanups {
    /// Only cleanups for this kind of store. This store would report the objects of another one as missing.
    storage_type: &'static str,
    scope: Scope,
    now: UnixMs,
    limit: usize,
    lease_ms: i64,
}

impl Write for ClaimCleanups {
    type Answer = Claimed<ClaimedCleanup>;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<Self::Answer>, CatalogError> {
        let (due, order, args) = match &self.scope {
            Scope::All => ("lease_until <= $2 AND rank IS NOT NULL", "rank", Vec::new()),
            Scope::Tenant(tenant) | Scope::User(tenant, _) => (
                "lease_until <= $2 AND tenant_id = $4 AND next_attempt_at <= $2",
                "next_attempt_at",
                args![tenant.as_str()],
            ),
        };
        let claim = Claim {
            queue: self.storage_type,
            now: self.now,
            lease_until: self.now.saturating_add(self.lease_ms),
            due,
            order,
            by_rank: self.scope == Scope::All,
            limit: self.limit,
            args,
        };
        let Claimed { rows, rank } = engine::claim(tx, &CLEANUPS, claim).await?;
        let rows = engine::readable(tx, &CLEANUPS, &rows, self.now, decode_claim).await?;
        Ok(TxOutcome::Commit(Claimed { rows, rank }))
    }
}

pub(crate) fn decode_claim(row: &Row) -> Result<ClaimedCleanup, CatalogError> {
    Ok(ClaimedCleanup {
        id: row.parsed("id")?,
        token: row.int("lease_token")?,
        // Orphans may have keys of any form.
        key: ObjectKey::from_listing(&row.text("file_path")?)
            .map_err(|_| CatalogError::Corrupt("file_path is not a key".into()))?,
        tenant: TenantId::new(&row.text("tenant_id")?).ok(),
        reason: row.text("reason")?,
        attempts: u32::try_from(row.int("attempts")?).unwrap_or(u32::MAX),
        max_attempts: u32::try_from(row.int("max_attempts")?).unwrap_or(u32::MAX),
        finish_at: row.int("finish_at")?,
        in_parts: row.int("in_parts")? != 0,
    })
}

struct RecordOutcomes {
    outcomes: Vec<(ClaimedCleanup, CleanupOutcome)>,
    now: UnixMs,
    targets: OutboxTargets,
}

/// The first of the cleanups that are newly exhausted, and their number.
struct NewlyExhausted<'s> {
    first: &'s ClaimedCleanup,
    error: &'s str,
    count: u64,
}

impl Write for RecordOutcomes {
    type Answer = CleanupTotals;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<CleanupTotals>, CatalogError> {
        let mut totals = CleanupTotals::default();
        let mut newly_exhausted: Option<NewlyExhausted<'_>> = None;
        let finished: Vec<&ClaimedCleanup> = self
            .outcomes
            .iter()
            .filter(|(claim, outcome)| *outcome == CleanupOutcome::Deleted && claim.finish_at <= self.now)
            .map(|(claim, _)| claim)
            .collect();
        if !finished.is_empty() {
            let held: Vec<_> = finished.iter().map(|claim| (claim.id.to_string(), claim.token)).collect();
            let logged = "id, file_path, reason, ordered_by, tenant_id, document_id, size";
            let done = engine::finish(tx, &CLEANUPS, &held, logged).await?;
            totals.done += done.len() as u64;
            deletion_log::record(tx, &done, self.now).await?;
            let orphans = finished.iter().filter(|claim| claim.reason == REASON_ORPHAN);
            let orphans: Vec<&str> = orphans.map(|claim| claim.key.as_str()).collect();
            totals.orphans += delete_cleaned(tx, &orphans).await?;
        }
        for (claim, outcome) in &self.outcomes {
            let (attempts, error, due_at) = match outcome {
                CleanupOutcome::Deleted if claim.finish_at <= self.now => continue,
                // Deleted, but an upload URL is still valid: delete once more when it has expired.
                CleanupOutcome::Deleted => (0, None, claim.finish_at),
                CleanupOutcome::Refused { error, retry_at } => {
                    (claim.attempts.saturating_add(1), Some(error), *retry_at)
                }
                CleanupOutcome::StoreDown { error, retry_at } => (claim.attempts, Some(error), *retry_at),
            };
            let is_exhausted = attempts >= claim.max_attempts;
            let is_refused = attempts > claim.attempts;
            let due_at = match is_refused && is_exhausted {
                true => self.now.saturating_add(EXHAUSTED_RETRY_MS),
                false => due_at,
            };
            let held = format!("id = $2 AND lease_token = $3 AND {}", CLEANUPS.held);
            let set = ["attempts = $4", "exhausted = $5", "last_error = $6", "last_attempt_at = $7"];
            let args = args![
                claim.id.to_string(),
                claim.token,
                i64::from(attempts),
                i64::from(is_exhausted),
                error.map(|error| clip(error, ERROR_TEXT_BYTES_MAX)),
                self.now
            ];
            let kept = engine::release(tx, &CLEANUPS, &held, Some(due_at), &set, args).await?;
            let Some(error) = error.filter(|_| kept == 1) else { continue };
            totals.failed += 1;
            totals.exhausted += u64::from(is_refused && is_exhausted);
            // Cleanups that were exhausted before have had their alert.
            if is_refused && attempts == claim.max_attempts {
                let more = NewlyExhausted { first: claim, error, count: 0 };
                newly_exhausted.get_or_insert(more).count += 1;
            }
        }
        if let Some(newly_exhausted) = newly_exhausted.filter(|_| self.targets.slack) {
            let message = format!(
                "Deletes that the store refused too often: {}. They are retried once a day from now on. The first: {}: {}",
                newly_exhausted.count, newly_exhausted.first.key, newly_exhausted.error
            );
            lines::alert(tx, message, self.now).await?;
        }
        Ok(TxOutcome::Commit(totals))
    }
}

/// Makes all failed cleanups due now, exhausted ones included. Leased ones are left to their process.
struct RetryNow {
    scope: Scope,
    now: UnixMs,
}

impl Write for RetryNow {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let mut args = args![self.now];
        let sql = format!(
            "UPDATE pending_cleanups SET next_attempt_at = $1 \
             WHERE last_error IS NOT NULL AND next_attempt_at > $1 AND lease_until <= $1{}",
            tenant_condition(&self.scope, &mut args)
        );
        Ok(TxOutcome::Commit(tx.run_built(sql, args).await?))
    }
}

/// A condition to append to another one. Cleanups have a tenant and no user.
pub(crate) fn tenant_condition(scope: &Scope, args: &mut Vec<Arg>) -> String {
    match scope {
        Scope::All => String::new(),
        Scope::Tenant(tenant) | Scope::User(tenant, _) => {
            args.push(tenant.as_str().into());
            format!(" AND tenant_id = ${}", args.len())
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCleanup {
    pub id: CleanupId,
    pub file_path: String,
    pub reason: String,
    pub attempts: i64,
    pub max_attempts: i64,
    pub last_error: Option<String>,
    pub created_at: UnixMs,
    pub last_attempt_at: Option<UnixMs>,
    pub document_id: String,
}

fn decode(row: &Row) -> Result<PendingCleanup, CatalogError> {
    Ok(PendingCleanup {
        id: row.parsed("id")?,
        file_path: row.text("file_path")?,
        reason: row.text("reason")?,
        attempts: row.int("attempts")?,
        max_attempts: row.int("max_attempts")?,
        last_error: row.maybe_text("last_error")?,
        created_at: row.int("created_at")?,
        last_attempt_at: row.maybe_int("last_attempt_at")?,
        document_id: row.text("document_id")?,
    })
}

impl Catalog {
    /// Claims due cleanups of a scope.
    pub async fn claim_cleanups(
        &self,
        scope: &Scope,
        now: UnixMs,
        limit: usize,
        lease_ms: i64,
    ) -> Result<Vec<ClaimedCleanup>, CatalogError> {
        let storage_type = self.rows.storage_type;
        let claim = ClaimCleanups { storage_type, scope: scope.clone(), now, limit, lease_ms };
        self.claim((&CLEANUPS, storage_type, now), *scope == Scope::All, claim).await
    }

    pub async fn record_cleanup_outcomes(
        &self,
        outcomes: Vec<(ClaimedCleanup, CleanupOutcome)>,
        now: UnixMs,
    ) -> Result<CleanupTotals, CatalogError> {
        self.write(RecordOutcomes { outcomes, now, targets: self.rows.targets }).await
    }

    pub async fn retry_cleanups_now(&self, scope: &Scope, now: UnixMs) -> Result<u64, CatalogError> {
        self.write(RetryNow { scope: scope.clone(), now }).await
    }

    /// Oldest first.
    pub async fn pending_cleanups(
        &self,
        scope: &Scope,
        after: Option<CleanupId>,
        limit: usize,
    ) -> Result<Vec<PendingCleanup>, CatalogError> {
        let after = after.map_or_else(String::new, |id| id.to_string());
        let mut args = args![after, (limit + SPARE_ROWS) as i64];
        let sql = format!(
            "SELECT id, file_path, reason, attempts, max_attempts, last_error, created_at, last_attempt_at, \
             document_id FROM pending_cleanups WHERE id > $1{} ORDER BY id LIMIT $2",
            tenant_condition(scope, &mut args)
        );
        let mut reader = self.reader().await?;
        let rows = reader.tx(&self.faults).rows_built(sql, args).await?;
        Ok(self.readable_page(Table::Cleanups, &rows, limit, decode).await)
    }

    pub async fn next_cleanup_at(&self) -> Result<Option<UnixMs>, CatalogError> {
        let mut reader = self.reader().await?;
        let row = reader
            .tx(&self.faults)
            .row(
                "SELECT MIN(at) AS at FROM (SELECT MIN(next_attempt_at) AS at FROM pending_cleanups \
                 WHERE storage_type = $1 AND rank IS NULL UNION ALL SELECT * FROM (SELECT next_attempt_at \
                 FROM pending_cleanups WHERE storage_type = $1 AND rank IS NOT NULL ORDER BY rank, id LIMIT 1) AS ranked) AS firsts",
                args![self.rows.storage_type],
            )
            .await?;
        row.map_or(Ok(None), |row| row.maybe_int("at"))
    }
}
