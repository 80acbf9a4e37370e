//! Checks rules over the whole catalog by SQL queries. `doctor` shows the findings to operators, and the conformance tests
//! expect none.

use crate::Catalog;
use crate::database::sql::args;
use crate::error::CatalogError;

/// Rules, each with a query for the rows that break it. The column `what` names such a row.
const RULES: [(&str, &str); 18] = [
    (
        "the quota counter of a tenant equals the sum of its files (I2)",
        "SELECT q.tenant_id AS what FROM quotas q LEFT JOIN \
         (SELECT tenant_id, SUM(charged_bytes) AS total FROM files GROUP BY tenant_id) f \
         ON f.tenant_id = q.tenant_id WHERE q.owner = 'database' AND q.used_bytes <> COALESCE(f.total, 0)",
    ),
    (
        "every charged file has a quota row (I2)",
        "SELECT id AS what FROM files WHERE charged_bytes > 0 \
         AND NOT EXISTS (SELECT 1 FROM quotas WHERE quotas.tenant_id = files.tenant_id)",
    ),
    (
        "the status counters agree with the files",
        "SELECT tenant_id AS what FROM \
         (SELECT tenant_id, user_id, status, stage, files, charged_bytes FROM file_counts \
         UNION ALL SELECT tenant_id, user_id, pipeline_status, \
         CASE WHEN pipeline_status IN ('queued', 'failed') THEN COALESCE(stage, '') ELSE '' END, \
         -COUNT(*), -SUM(charged_bytes) FROM files GROUP BY 1, 2, 3, 4) AS both_sides \
         GROUP BY tenant_id, user_id, status, stage HAVING SUM(files) <> 0 OR SUM(charged_bytes) <> 0",
    ),
    (
        "every file has its object row, and every object row its file",
        "SELECT f.id AS what FROM files f WHERE NOT EXISTS \
         (SELECT 1 FROM objects o WHERE o.file_id = f.id AND o.kind = 'original') \
         UNION ALL SELECT o.file_id FROM objects o WHERE o.kind = 'original' \
         AND NOT EXISTS (SELECT 1 FROM files f WHERE f.id = o.file_id)",
    ),
    (
        "the last history line of a file has its status (I16)",
        "SELECT f.id AS what FROM files f WHERE f.pipeline_status <> COALESCE(\
         (SELECT h.to_status FROM file_history h WHERE h.file_id = f.id ORDER BY h.version DESC LIMIT 1), '')",
    ),
    (
        "no deleted file has a later status (I16)",
        "SELECT file_id AS what FROM file_history WHERE from_status = 'deleted'",
    ),
    (
        "every file that is not final has a next check (I15)",
        "SELECT id AS what FROM files \
         WHERE next_check_at IS NULL AND pipeline_status NOT IN ('ready', 'quarantined')",
    ),
    (
        "a file in the pipeline has exactly one live job (I7)",
        "SELECT f.id AS what FROM files f WHERE f.pipeline_status IN \
         ('uploaded', 'queued', 'scanning', 'extracting', 'chunking', 'embedding') AND 1 <> \
         (SELECT COUNT(*) FROM jobs j WHERE j.file_id = f.id AND j.state <> 'dead' AND j.queue LIKE 'file-%')",
    ),
    (
        "a live stage job belongs to a file in the pipeline, a dead one to a failed file",
        "SELECT j.id AS what FROM jobs j LEFT JOIN files f ON f.id = j.file_id WHERE j.queue LIKE 'file-%' \
         AND (f.id IS NULL OR (j.state = 'dead') <> (f.pipeline_status = 'failed') OR f.pipeline_status IN \
         ('registered', 'ready', 'quarantined', 'deleted'))",
    ),
    (
        "a deleted file has no chunks, text or stage outputs",
        "SELECT d.file_id AS what FROM (SELECT file_id FROM chunks UNION SELECT file_id FROM text_parts \
         UNION SELECT file_id FROM stage_outputs UNION SELECT file_id FROM objects WHERE kind = 'derived') d \
         LEFT JOIN files f ON f.id = d.file_id WHERE f.id IS NULL OR f.pipeline_status = 'deleted'",
    ),
    (
        "no cleanup has the object of a live file (I4)",
        "SELECT p.file_path AS what FROM pending_cleanups p JOIN objects o ON o.key = p.file_path \
         JOIN files f ON f.id = o.file_id WHERE f.pipeline_status <> 'deleted'",
    ),
    (
        "a queued orphan has a cleanup (I6)",
        "SELECT b.key AS what FROM orphan_blobs b WHERE b.queued_at IS NOT NULL \
         AND NOT EXISTS (SELECT 1 FROM pending_cleanups p WHERE p.file_path = b.key)",
    ),
    (
        "the batch of a file exists and has the same owner (I11)",
        "SELECT f.id AS what FROM files f LEFT JOIN upload_batches b ON b.id = f.batch_id \
         WHERE f.batch_id IS NOT NULL AND (b.id IS NULL OR b.tenant_id <> f.tenant_id OR b.user_id <> f.user_id)",
    ),
    (
        "a completed batch has no unconfirmed files",
        "SELECT f.id AS what FROM files f JOIN upload_batches b ON b.id = f.batch_id \
         WHERE b.status = 'completed' AND f.pipeline_status = 'registered'",
    ),
    (
        "a failed file has a stage if it has a dead letter, and only then",
        "SELECT f.id AS what FROM files f WHERE f.pipeline_status = 'failed' AND (f.stage IS NULL) <> (NOT EXISTS \
         (SELECT 1 FROM jobs j WHERE j.file_id = f.id AND j.state = 'dead' AND j.queue LIKE 'file-%'))",
    ),
    (
        "the outcome counters agree with the files of the last day",
        "SELECT tenant_id AS what FROM (SELECT tenant_id, user_id, outcome, at, files FROM file_outcomes \
         UNION ALL SELECT tenant_id, user_id, pipeline_status, ended_at / 900000 * 900000, -COUNT(*) FROM \
         (SELECT tenant_id, user_id, pipeline_status, CASE pipeline_status WHEN 'ready' THEN COALESCE(ready_at, updated_at) \
         ELSE COALESCE(failed_at, updated_at) END AS ended_at FROM files \
         WHERE pipeline_status IN ('ready', 'failed', 'quarantined')) AS ended GROUP BY 1, 2, 3, 4) AS both_sides \
         WHERE at > (SELECT MAX(updated_at) FROM files) - 86400000 AND at >= (SELECT MIN(at) FROM file_outcomes) \
         GROUP BY tenant_id, user_id, outcome, at HAVING SUM(files) <> 0",
    ),
    (
        "a failed or quarantined file has the time of its failure",
        "SELECT id AS what FROM files WHERE pipeline_status IN ('failed', 'quarantined') AND failed_at IS NULL",
    ),
    (
        "no failed or quarantined file is deleted for its age without a warning (I12)",
        "SELECT f.id AS what FROM files f JOIN file_history h ON h.file_id = f.id AND h.version = f.version \
         WHERE f.pipeline_status = 'deleted' AND f.end_reason = 'reclaimed' AND h.from_status IN ('failed', 'quarantined') \
         AND f.warned_at IS NULL",
    ),
];

const FINDINGS_PER_RULE_MAX: usize = 20;

impl Catalog {
    /// Returns broken rules, each with the name of a row that breaks it. Empty: no rule is broken.
    pub async fn audit(&self) -> Result<Vec<String>, CatalogError> {
        self.audit_with(|_, _| {}).await
    }

    /// The same. Before each rule it reports the number of finished rules and of all rules. On a large catalog a rule
    /// takes a while.
    pub async fn audit_with(&self, progress: impl Fn(usize, usize)) -> Result<Vec<String>, CatalogError> {
        let mut findings = Vec::new();
        let mut reader = self.reader().await?;
        let mut tx = reader.tx(&self.faults);
        for (n, (rule, sql)) in RULES.into_iter().enumerate() {
            progress(n, RULES.len());
            let sql = format!("SELECT what FROM ({sql}) AS broken LIMIT {FINDINGS_PER_RULE_MAX}");
            for row in &tx.rows_built(sql, args![]).await? {
                findings.push(format!("{rule}: {}", row.text("what")?));
            }
        }
        Ok(findings)
    }
}
