//! The audit log: what operators and admins did. A line is written in the transaction of the change that it describes.

use std::sync::Arc;

use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;

use crate::Catalog;
use crate::database::sql::{Row, Tx, args};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::fresh_id;
use crate::unreadable::{SPARE_ROWS, Table};

/// Who did what, to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: UnixMs,
    /// `operator:ann`, or `cli` for a command on the server's machine.
    pub actor: String,
    pub action: &'static str,
    /// None: it concerns no single tenant.
    pub tenant: Option<TenantId>,
    /// The name or id of the thing that was changed.
    pub subject: String,
    /// A JSON object.
    pub detail: String,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    pub id: String,
    pub at: UnixMs,
    pub actor: String,
    pub action: String,
    pub tenant: Option<String>,
    pub subject: String,
    pub detail: String,
}

pub(crate) async fn insert(tx: &mut Tx<'_>, entry: &AuditEntry) -> Result<(), CatalogError> {
    tx.run(
        "INSERT INTO audit_log (id, at, actor, action, tenant_id, subject, detail) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        args![
            fresh_id(entry.at).to_string(),
            entry.at,
            entry.actor.as_str(),
            entry.action,
            entry.tenant.as_ref().map(TenantId::as_str),
            entry.subject.as_str(),
            entry.detail.as_str(),
        ],
    )
    .await?;
    Ok(())
}

pub(crate) fn decode(row: &Row) -> Result<AuditLine, CatalogError> {
    Ok(AuditLine {
        id: row.text("id")?,
        at: row.int("at")?,
        actor: row.text("actor")?,
        action: row.text("action")?,
        tenant: row.maybe_text("tenant_id")?,
        subject: row.text("subject")?,
        detail: row.text("detail")?,
    })
}

struct LogAction(AuditEntry);

impl Write for LogAction {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        insert(tx, &self.0).await?;
        Ok(TxOutcome::Commit(()))
    }
}

struct PurgeAuditLog {
    before: UnixMs,
    limit: usize,
}

impl Write for PurgeAuditLog {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let removed = tx
            .run(
                "DELETE FROM audit_log WHERE id IN (SELECT id FROM audit_log WHERE at < $1 ORDER BY at, id LIMIT $2)",
                args![self.before, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(removed))
    }
}

impl Catalog {
    /// This catalog for one change of an operator or admin: each of its committed writes also adds this line.
    pub fn audited(&self, entry: AuditEntry) -> Catalog {
        Catalog { audit: Some(Arc::new(entry)), ..self.clone() }
    }

    /// Logs an action that is not one write, before it begins.
    pub async fn log_action(&self, entry: AuditEntry) -> Result<(), CatalogError> {
        self.write(LogAction(entry)).await
    }

    /// Newest first: all lines, or those of one tenant.
    pub async fn audit_log(
        &self,
        tenant: Option<&TenantId>,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Vec<AuditLine>, CatalogError> {
        // Greater than every id.
        let before = before.unwrap_or("g");
        let rows_max = (limit + SPARE_ROWS) as i64;
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        let rows = match tenant {
            None => {
                let sql = "SELECT id, at, actor, action, tenant_id, subject, detail FROM audit_log WHERE id < $1 \
                           ORDER BY id DESC LIMIT $2";
                tx.rows(sql, args![before, rows_max]).await?
            }
            Some(tenant) => {
                let sql = "SELECT id, at, actor, action, tenant_id, subject, detail FROM audit_log \
                           WHERE tenant_id = $3 AND id < $1 ORDER BY id DESC LIMIT $2";
                tx.rows(sql, args![before, rows_max, tenant.as_str()]).await?
            }
        };
        Ok(self.readable_page(Table::AuditLog, &rows, limit, decode).await)
    }

    /// Deletes the oldest lines from before a time; returns how many.
    pub async fn purge_audit_log(&self, before: UnixMs, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeAuditLog { before, limit }).await
    }
}
