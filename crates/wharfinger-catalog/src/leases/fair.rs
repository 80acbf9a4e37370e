//! Fair order between tenants. When an item becomes due, it gets a rank: the larger of the virtual time of its queue and
//! one more than the last rank of its tenant. Items are claimed by rank, so a tenant with one item waits behind one item of
//! each other tenant, not behind all of them. The virtual time is the highest claimed rank. It never decreases and is
//! stored in the row of the tenant ''.

use std::collections::BTreeMap;

use wharfinger_lifecycle::UnixMs;

use crate::Catalog;
use crate::database::sql::{Dialect, Tx, args, places, typed_rows};
use crate::database::writer::{TxOutcome, Write};
use crate::error::CatalogError;
use crate::leases::engine::Claimed;
use crate::leases::tables::LeaseTable;

/// How many items get their rank in one transaction.
const RANKED_PER_TRANSACTION: usize = 500;
/// The most such transactions before one claim.
const RANK_ROUNDS_MAX: usize = 20;

const VIRTUAL_TIME: &str = "";

/// Gives due rows of a queue their ranks, in the order of their due times; returns how many.
pub(crate) async fn rank_due(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    queue: &str,
    now: UnixMs,
) -> Result<usize, CatalogError> {
    let LeaseTable { id, due_at, scheduled, queue: queue_column, .. } = of;
    let table = of.table.as_str();
    let lock = tx.dialect().pick("", "FOR UPDATE SKIP LOCKED");
    let sql = format!(
        "SELECT {id} AS id, tenant_id FROM {table} WHERE {queue_column} = $1 AND {scheduled} AND {due_at} <= $2 \
         ORDER BY {due_at}, {id} LIMIT $3 {lock}"
    );
    let rows = tx.rows_built(sql, args![queue, now, RANKED_PER_TRANSACTION as i64]).await?;
    if rows.is_empty() {
        return Ok(0);
    }
    let due = rows.iter().map(|row| Ok((row.text("id")?, row.text("tenant_id")?)));
    let due = due.collect::<Result<Vec<_>, CatalogError>>()?;
    let virtual_time = virtual_time(tx, queue).await?;
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, tenant) in &due {
        *counts.entry(tenant).or_default() += 1;
    }
    let mut next = take_ranks(tx, queue, virtual_time, &counts).await?;
    let mut ranks = Vec::with_capacity(due.len());
    for (id, tenant) in &due {
        let rank = next.entry(tenant.clone()).or_insert(virtual_time);
        ranks.push((id.as_str(), *rank));
        *rank += 1;
    }
    for some in ranks.chunks(tx.dialect().rows_max()) {
        let sql = format!(
            "WITH new (id, rank) AS (VALUES {}) UPDATE {table} SET rank = new.rank FROM new WHERE {table}.{id} = new.id",
            typed_rows(1, &["TEXT", "BIGINT"], some.len())
        );
        tx.run_built(sql, some.iter().flat_map(|(id, rank)| args![*id, *rank]).collect()).await?;
    }
    Ok(due.len())
}

/// Reserves ranks for each tenant, as many as `counts` says; returns the first of each.
async fn take_ranks(
    tx: &mut Tx<'_>,
    queue: &str,
    virtual_time: i64,
    counts: &BTreeMap<&str, i64>,
) -> Result<BTreeMap<String, i64>, CatalogError> {
    let mut firsts = BTreeMap::new();
    let tenants: Vec<_> = counts.iter().collect();
    // In the order of their keys, so that concurrent rankings lock these rows in one order.
    for some in tenants.chunks(tx.dialect().rows_max()) {
        let rows: Vec<String> = (0..some.len()).map(|n| format!("($1, {})", places(3 + 2 * n, 2))).collect();
        let larger = tx.dialect().pick("MAX", "GREATEST");
        let sql = format!(
            "INSERT INTO queue_tenants (queue, tenant_id, last_rank) VALUES {} \
             ON CONFLICT (queue, tenant_id) DO UPDATE SET last_rank = \
             {larger}(queue_tenants.last_rank + 1, CAST($2 AS BIGINT)) + excluded.last_rank - CAST($2 AS BIGINT) \
             RETURNING tenant_id, last_rank",
            rows.join(", ")
        );
        let mut args = args![queue, virtual_time];
        for (tenant, count) in some {
            args.extend(args![**tenant, virtual_time.saturating_add(**count - 1)]);
        }
        for row in tx.rows_built(sql, args).await? {
            let tenant = row.text("tenant_id")?;
            let count = counts.get(tenant.as_str()).copied().unwrap_or(1);
            firsts.insert(tenant, row.int("last_rank")?.saturating_sub(count - 1));
        }
    }
    Ok(firsts)
}

async fn virtual_time(tx: &mut Tx<'_>, queue: &str) -> Result<i64, CatalogError> {
    let sql = "SELECT last_rank FROM queue_tenants WHERE queue = $1 AND tenant_id = $2";
    tx.row(sql, args![queue, VIRTUAL_TIME]).await?.map_or(Ok(0), |row| row.int("last_rank"))
}

/// Raises the virtual time to the highest claimed rank.
pub(crate) async fn raise_virtual_time(
    tx: &mut Tx<'_>,
    queue: &str,
    claimed: i64,
) -> Result<(), CatalogError> {
    tx.run(
        "INSERT INTO queue_tenants (queue, tenant_id, last_rank) VALUES ($1, $2, $3) \
         ON CONFLICT (queue, tenant_id) DO UPDATE SET last_rank = excluded.last_rank \
         WHERE queue_tenants.last_rank < excluded.last_rank",
        args![queue, VIRTUAL_TIME, claimed],
    )
    .await?;
    Ok(())
}

/// Gives due rows their ranks, in a separate transaction.
struct RankDue {
    of: &'static LeaseTable,
    queue: String,
    now: UnixMs,
}

impl Write for RankDue {
    type Answer = usize;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<usize>, CatalogError> {
        let ranked = rank_due(tx, self.of, &self.queue, self.now).await?;
        Ok(if ranked == 0 { TxOutcome::Rollback(0) } else { TxOutcome::Commit(ranked) })
    }
}

/// Raises the virtual time in a separate transaction, after the commit of the claim.
struct RaiseVirtualTime {
    queue: String,
    claimed: i64,
}

impl Write for RaiseVirtualTime {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<()>, CatalogError> {
        raise_virtual_time(tx, &self.queue, self.claimed).await?;
        Ok(TxOutcome::Commit(()))
    }
}

/// Deletes tenants whose last rank is below the virtual time. Such a row has no effect on later ranks.
struct PurgeTenants {
    limit: usize,
}

impl Write for PurgeTenants {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<TxOutcome<u64>, CatalogError> {
        let deleted = tx
            .run(
                "DELETE FROM queue_tenants WHERE (queue, tenant_id) IN (SELECT t.queue, t.tenant_id \
                 FROM queue_tenants t JOIN queue_tenants v ON v.queue = t.queue AND v.tenant_id = $1 \
                 WHERE t.tenant_id <> $1 AND t.last_rank < v.last_rank LIMIT $2) \
                 AND last_rank < (SELECT v.last_rank FROM queue_tenants v WHERE v.queue = queue_tenants.queue \
                 AND v.tenant_id = $1)",
                args![VIRTUAL_TIME, self.limit as i64],
            )
            .await?;
        Ok(TxOutcome::Commit(deleted))
    }
}

impl Catalog {
    /// Ranks the due rows of a queue in a bounded number of transactions; returns how many.
    pub(crate) async fn rank_queue(
        &self,
        of: &'static LeaseTable,
        queue: &str,
        now: UnixMs,
    ) -> Result<usize, CatalogError> {
        let mut all = 0;
        for _ in 0..RANK_ROUNDS_MAX {
            let ranked = self.write(RankDue { of, queue: queue.to_owned(), now }).await?;
            all += ranked;
            if ranked < RANKED_PER_TRANSACTION {
                break;
            }
        }
        Ok(all)
    }

    /// Claims from a queue. For a claim by rank SQLite ranks and raises the virtual time in the same transaction. On
    /// PostgreSQL these are separate transactions, so that claims of several processes do not wait for each other.
    pub(crate) async fn claim<T, W: Write<Answer = Claimed<T>>>(
        &self,
        (of, queue, now): (&'static LeaseTable, &str, UnixMs),
        by_rank: bool,
        claim: W,
    ) -> Result<Vec<T>, CatalogError> {
        let ranks_separately = by_rank && self.dialect() == Dialect::Postgres;
        if ranks_separately {
            self.rank_queue(of, queue, now).await?;
        }
        let claimed = self.write(claim).await?;
        if let Some(rank) = claimed.rank.filter(|_| ranks_separately) {
            // Best effort: if it fails, the next due items get slightly lower ranks.
            let raised = self.write(RaiseVirtualTime { queue: queue.to_owned(), claimed: rank }).await;
            if let Err(error) = raised {
                tracing::warn!(queue, error = %error, "cannot raise the virtual time of a queue");
            }
        }
        Ok(claimed.rows)
    }

    /// Deletes tenants that do not affect the order any more; returns how many, at most `limit`.
    pub async fn purge_queue_tenants(&self, limit: usize) -> Result<u64, CatalogError> {
        self.write(PurgeTenants { limit }).await
    }
}
