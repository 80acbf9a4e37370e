//! Operations on leases, the same for all tables: claim due rows, skip unreadable ones, extend, release, finish.

use wharfinger_lifecycle::UnixMs;

use crate::database::sql::{Arg, Dialect, Row, Tx, args, places, tuples};
use crate::error::CatalogError;
use crate::leases::fair;
use crate::leases::tables::LeaseTable;
use crate::unreadable::{self, RETRY_MS};

/// Which rows of a queue a claim takes.
pub(crate) struct Claim<'a> {
    pub(crate) queue: &'a str,
    pub(crate) now: UnixMs,
    pub(crate) lease_until: UnixMs,
    /// A condition: `$1` is the queue, `$2` now, `$3` the end of the lease, and `$4` the first of `args`.
    pub(crate) due: &'a str,
    pub(crate) order: &'a str,
    /// Rows are claimed by rank. Due rows get their rank before, and the claim raises the virtual time of the queue.
    pub(crate) by_rank: bool,
    pub(crate) limit: usize,
    pub(crate) args: Vec<Arg>,
}

/// The claimed rows, and the highest rank among them.
pub(crate) struct Claimed<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) rank: Option<i64>,
}

/// Leases due rows and skips those that another transaction has locked. On PostgreSQL a claim by rank also needs the
/// transactions of [`crate::Catalog::claim`] before and after it.
pub(crate) async fn claim(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    claim: Claim<'_>,
) -> Result<Claimed<Row>, CatalogError> {
    let Claim { queue, now, lease_until, due, order, by_rank, limit, args } = claim;
    let ranks_here = by_rank && tx.dialect() == Dialect::Sqlite;
    if ranks_here {
        fair::rank_due(tx, of, queue, now).await?;
    }
    let (table, id) = (of.table.as_str(), of.id);
    // SQLite has one writer: no other transaction locks rows.
    let (join, lock) = tx.dialect().pick(("", ""), (of.join, of.lock));
    // PostgreSQL assumes that a CTE is large and would scan the table for its rows. For an array it uses the index. The
    // limit is part of the text, because for an unknown one PostgreSQL assumes a tenth of the table.
    let is_due = tx.dialect().pick("IN (SELECT id FROM due)", "= ANY (ARRAY(SELECT id FROM due))");
    let sql = format!(
        "WITH due AS MATERIALIZED (SELECT {table}.{id} AS id FROM {table} {join} \
         WHERE {table}.{queue_column} = $1 AND {due} ORDER BY {order}, {table}.{id} LIMIT {limit} {lock}) \
         UPDATE {table} SET {set} WHERE {id} {is_due} RETURNING {claimed}",
        queue_column = of.queue,
        set = of.claim,
        claimed = of.claimed,
    );
    let mut values = args![queue, now, lease_until];
    values.extend(args);
    let rows = tx.rows_built(sql, values).await?;
    let rank = match by_rank {
        true => rows.iter().filter_map(|row| row.maybe_int("rank").ok().flatten()).max(),
        false => None,
    };
    if let Some(rank) = rank.filter(|_| ranks_here) {
        fair::raise_virtual_time(tx, queue, rank).await?;
    }
    Ok(Claimed { rows, rank })
}

/// The readable ones of the claimed rows. The others are listed and wait, so that they do not block other rows.
pub(crate) async fn readable<T>(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    rows: &[Row],
    now: UnixMs,
    decode: impl Fn(&Row) -> Result<T, CatalogError>,
) -> Result<Vec<T>, CatalogError> {
    let (readable, others) = unreadable::split(rows, of.id, decode);
    unreadable::record(tx, of.table, &others).await?;
    let others: Vec<String> = others.into_iter().map(|(id, _)| id).collect();
    let set = ["last_error = 'the row cannot be read'"].into_iter().chain(of.unreadable);
    release_without_attempt(tx, of, &others, now.saturating_add(RETRY_MS), set.collect()).await?;
    Ok(readable)
}

/// Releases claimed rows that were not worked on. Their attempt does not count.
pub(crate) async fn unclaim(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    ids: &[String],
    due_at: UnixMs,
) -> Result<(), CatalogError> {
    release_without_attempt(tx, of, ids, due_at, Vec::new()).await
}

async fn release_without_attempt(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    ids: &[String],
    due_at: UnixMs,
    mut set: Vec<&str>,
) -> Result<(), CatalogError> {
    set.extend(of.undo_attempt);
    for some in ids.chunks(tx.dialect().rows_max()) {
        let rows = format!("{} IN ({})", of.id, places(2, some.len()));
        let args = some.iter().flat_map(|id| args![id.as_str()]).collect();
        release(tx, of, &rows, Some(due_at), &set, args).await?;
    }
    Ok(())
}

/// Ends the leases of rows, which wait again; returns how many. In `rows` and `set`, `$2` is the first of `args`. `due_at`
/// None: their due time stays.
pub(crate) async fn release(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    rows: &str,
    due_at: Option<UnixMs>,
    set: &[&str],
    args: Vec<Arg>,
) -> Result<u64, CatalogError> {
    let due = format!("{due_at} = COALESCE($1, {due_at})", due_at = of.due_at);
    let set: Vec<&str> = [of.release, &due].into_iter().chain(set.iter().copied()).collect();
    let sql = format!("UPDATE {} SET {} WHERE {rows}", of.table.as_str(), set.join(", "));
    let mut values = args![due_at];
    values.extend(args);
    tx.run_built(sql, values).await
}

/// Extends a lease up to its deadline, and never shortens it. None: the lease is lost.
pub(crate) async fn renew(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    (id, token): (&str, i64),
    until: UnixMs,
) -> Result<Option<UnixMs>, CatalogError> {
    let (smaller, larger) = tx.dialect().pick(("MIN", "MAX"), ("LEAST", "GREATEST"));
    let until_at_most = match of.deadline_at {
        Some(deadline_at) => format!("{smaller}({deadline_at}, CAST($3 AS BIGINT))"),
        None => "CAST($3 AS BIGINT)".to_owned(),
    };
    let sql = format!(
        "UPDATE {} SET lease_until = {larger}(lease_until, {until_at_most}) \
         WHERE {} = $1 AND lease_token = $2 AND {} RETURNING lease_until",
        of.table.as_str(),
        of.id,
        of.held,
    );
    let rows = tx.rows_built(sql, args![id, token, until]).await?;
    rows.first().map(|row| row.int("lease_until")).transpose()
}

/// Deletes leased rows whose work is done and whose token is the current one; returns those.
pub(crate) async fn finish(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    held: &[(String, i64)],
    returned: &str,
) -> Result<Vec<Row>, CatalogError> {
    if held.is_empty() {
        return Ok(Vec::new());
    }
    // The list of ids is there for SQLite, which uses the index for it, but not for a list of pairs.
    let (table, id, count) = (of.table.as_str(), of.id, held.len());
    let sql = format!(
        "DELETE FROM {table} WHERE {} AND {id} IN ({}) AND ({id}, lease_token) IN (VALUES {}) RETURNING {returned}",
        of.held,
        places(1, count),
        tuples(count + 1, count, 2)
    );
    let ids = held.iter().flat_map(|(id, _)| args![id.as_str()]);
    let pairs = held.iter().flat_map(|(id, token)| args![id.as_str(), *token]);
    tx.rows_built(sql, ids.chain(pairs).collect()).await
}

/// Ids and tokens of the expired leases of a queue, the oldest first.
pub(crate) async fn expired(
    tx: &mut Tx<'_>,
    of: &LeaseTable,
    queue: &str,
    now: UnixMs,
    limit: usize,
) -> Result<Vec<(String, i64)>, CatalogError> {
    let sql = format!(
        "SELECT {id}, lease_token FROM {table} WHERE {held} AND lease_until <= $1 AND {queue_column} = $2 \
         ORDER BY lease_until LIMIT $3 {lock}",
        id = of.id,
        table = of.table.as_str(),
        held = of.held,
        queue_column = of.queue,
        lock = tx.dialect().pick("", of.lock),
    );
    let rows = tx.rows_built(sql, args![now, queue, limit as i64]).await?;
    Ok(rows.iter().filter_map(|row| Some((row.text(of.id).ok()?, row.int("lease_token").ok()?))).collect())
}
