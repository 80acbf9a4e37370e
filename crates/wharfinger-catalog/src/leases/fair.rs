//! Fair order between tenants. An item gets a rank when it becomes due: the virtual time of its queue, or one more than
//! the last rank of its tenant, whichever is larger. Claims go by rank, so a tenant with one item waits behind one item of
//! every other tenant, not behind all of them. The virtual time is the highest rank that was claimed; it only grows, and
//! is kept in the row of the tenant without a name.

use std::collections::BTreeMap;

use crate::Catalog;
use crate::database::sql::{Row, Tx, args, places, typed_rows};
use crate::database::writer::{Verdict, Write};
use crate::error::CatalogError;

/// How many items get their rank in one transaction.
pub(crate) const RANKED_AT_ONCE: usize = 500;

const VIRTUAL_TIME: &str = "";

/// Gives ranks to due items, each an id with its tenant, in the order in which they became due.
async fn rank(
    tx: &mut Tx<'_>,
    table: &'static str,
    queue: &str,
    due: &[(String, String)],
) -> Result<(), CatalogError> {
    if due.is_empty() {
        return Ok(());
    }
    let virtual_time = virtual_time(tx, queue).await?;
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, tenant) in due {
        *counts.entry(tenant).or_default() += 1;
    }
    let mut next = take_ranks(tx, queue, virtual_time, &counts).await?;
    let mut ranks = Vec::with_capacity(due.len());
    for (id, tenant) in due {
        let rank = next.entry(tenant.clone()).or_insert(virtual_time);
        ranks.push((id.as_str(), *rank));
        *rank += 1;
    }
    for some in ranks.chunks(tx.dialect().rows_max()) {
        let sql = format!(
            "WITH new (id, rank) AS (VALUES {}) UPDATE {table} SET rank = new.rank FROM new WHERE {table}.id = new.id",
            typed_rows(1, &["TEXT", "BIGINT"], some.len())
        );
        tx.run_built(sql, some.iter().flat_map(|(id, rank)| args![*id, *rank]).collect()).await?;
    }
    Ok(())
}

/// The same for rows with `id` and `tenant_id`; answers how many.
pub(crate) async fn rank_rows(
    tx: &mut Tx<'_>,
    table: &'static str,
    queue: &str,
    rows: &[Row],
) -> Result<usize, CatalogError> {
    let due = rows.iter().map(|row| Ok((row.text("id")?, row.text("tenant_id")?)));
    let due = due.collect::<Result<Vec<_>, CatalogError>>()?;
    rank(tx, table, queue, &due).await?;
    Ok(due.len())
}

/// Raises the last rank of each tenant by so many; answers the first of those.
async fn take_ranks(
    tx: &mut Tx<'_>,
    queue: &str,
    virtual_time: i64,
    counts: &BTreeMap<&str, i64>,
) -> Result<BTreeMap<String, i64>, CatalogError> {
    let mut firsts = BTreeMap::new();
    let tenants: Vec<_> = counts.iter().collect();
    // In the order of their keys: two that rank at the same time lock these rows in one order.
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

/// Moves the virtual time on to the highest rank that was claimed.
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

/// The same by itself, after the commit of the claim: claims of several processes do not wait for each other's row.
struct RaiseVirtualTime {
    queue: String,
    claimed: i64,
}

impl Write for RaiseVirtualTime {
    type Answer = ();

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<()>, CatalogError> {
        raise_virtual_time(tx, &self.queue, self.claimed).await?;
        Ok(Verdict::Commit(()))
    }
}

/// A tenant whose last rank is in the past is as good as unknown.
struct ForgetTenants {
    limit: usize,
}

impl Write for ForgetTenants {
    type Answer = u64;

    async fn write(&self, tx: &mut Tx<'_>) -> Result<Verdict<u64>, CatalogError> {
        let gone = tx
            .run(
                "DELETE FROM queue_tenants WHERE (queue, tenant_id) IN (SELECT t.queue, t.tenant_id \
                 FROM queue_tenants t JOIN queue_tenants v ON v.queue = t.queue AND v.tenant_id = $1 \
                 WHERE t.tenant_id <> $1 AND t.last_rank < v.last_rank LIMIT $2) \
                 AND last_rank < (SELECT v.last_rank FROM queue_tenants v WHERE v.queue = queue_tenants.queue \
                 AND v.tenant_id = $1)",
                args![VIRTUAL_TIME, self.limit as i64],
            )
            .await?;
        Ok(Verdict::Commit(gone))
    }
}

impl Catalog {
    /// Best effort: where it fails, the tenants of the next items come a little earlier than they should.
    pub(crate) async fn note_claimed(&self, queue: &str, ranks: impl Iterator<Item = i64>) {
        if let Some(claimed) = ranks.max() {
            let raised = self.write(RaiseVirtualTime { queue: queue.to_owned(), claimed }).await;
            if let Err(error) = raised {
                tracing::warn!(queue, error = %error, "cannot write the virtual time of a queue");
            }
        }
    }

    /// Removes tenants that have nothing waiting from the order; answers how many, at most `limit`.
    pub async fn forget_queue_tenants(&self, limit: usize) -> Result<u64, CatalogError> {
        self.write(ForgetTenants { limit }).await
    }
}
