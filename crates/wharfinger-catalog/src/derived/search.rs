//! The vectors of a scope's ready files that a search has to look at. Where the database compares, these are its best
//! and what it cannot compare; elsewhere all of them. Whoever searches compares again: one rule gives all scores.

use std::sync::Arc;

use wharfinger_lifecycle::id::FileId;

use crate::Catalog;
use crate::Scope;
use crate::database::sql::{Arg, Row, args};
use crate::derived::chunks::from_bytes;
use crate::derived::pgvector::literal;
use crate::error::CatalogError;
use crate::unreadable::Table;

const PAGE_VECTORS: usize = 2_000;
/// How many more than wanted the database brings, to see where those end that it cannot tell from the last.
const SPARE_VECTORS: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub struct StoredVector {
    pub file: FileId,
    pub ordinal: u64,
    pub vector: Vec<f32>,
}

/// All among which the best can be, page by page. The same vector may come twice.
pub struct Candidates<'c> {
    catalog: &'c Catalog,
    scope: Scope,
    /// As the database is asked for it, and how long it is.
    wanted: (String, usize),
    pgvector_schema: Arc<str>,
    limit: usize,
    next: Step,
}

/// A place in the order of files and their chunks.
type Place = Option<(FileId, u64)>;

enum Step {
    /// What the database cannot compare, after a place. It goes first: what is copied meanwhile comes again with the
    /// best, where the other way round it would be missed.
    NotCopied(Place),
    Best,
    All(Place),
    Done,
}

enum Found {
    Page {
        vectors: Vec<StoredVector>,
        /// There may be more.
        is_full: bool,
    },
    /// More than a page are so near to each other that the database cannot say which of them are the best.
    TooManyAlike,
}

impl Candidates<'_> {
    pub async fn next_page(&mut self) -> Result<Option<Vec<StoredVector>>, CatalogError> {
        loop {
            let page = match self.next {
                Step::Done => return Ok(None),
                Step::NotCopied(after) => self.page("AND chunks.embedding IS NULL", after).await,
                Step::Best => self.best().await,
                Step::All(after) => self.page("", after).await,
            };
            let page = match page {
                Ok(Found::TooManyAlike) => {
                    self.next = Step::All(None);
                    continue;
                }
                Ok(Found::Page { vectors, is_full }) => (vectors, is_full),
                Err(error) if self.relies_on_pgvector() && self.catalog.has_lost_pgvector(&error).await => {
                    self.next = Step::All(None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (page, is_full) = page;
            let last = page.last().filter(|_| is_full).map(|one| (one.file, one.ordinal));
            self.next = match (&self.next, last) {
                (Step::NotCopied(_), Some(last)) => Step::NotCopied(Some(last)),
                (Step::NotCopied(_), None) => Step::Best,
                (Step::All(_), Some(last)) => Step::All(Some(last)),
                _ => Step::Done,
            };
            return Ok(Some(page));
        }
    }

    fn relies_on_pgvector(&self) -> bool {
        matches!(self.next, Step::NotCopied(_) | Step::Best)
    }

    async fn page(&self, which: &str, after: Place) -> Result<Found, CatalogError> {
        let (id, ordinal) = after.map_or((String::new(), -1), |(id, ordinal)| {
            (id.to_string(), i64::try_from(ordinal).unwrap_or(i64::MAX))
        });
        let mut args = args![id, ordinal, PAGE_VECTORS as i64];
        let of_scope = self.of_scope(&mut args);
        let sql = format!(
            "SELECT chunks.file_id, chunks.ordinal, chunks.vector {of_scope} AND chunks.vector IS NOT NULL {which} \
             AND files.id >= $1 AND (files.id > $1 OR chunks.ordinal > $2) \
             ORDER BY files.id, chunks.ordinal LIMIT $3"
        );
        let rows = self.rows(sql, args).await?;
        let is_full = rows.len() == PAGE_VECTORS;
        let vectors = self.catalog.readable(Table::Chunks, "file_id", &rows, decode).await;
        Ok(Found::Page { vectors, is_full })
    }

    /// The nearest by the database's own reckoning in 32 bits, and all that may be as near by ours.
    async fn best(&self) -> Result<Found, CatalogError> {
        for most in [self.limit + SPARE_VECTORS, PAGE_VECTORS] {
            let nearest = self.nearest(most).await?;
            let last = nearest.get(self.limit.saturating_sub(1)).and_then(|(distance, _)| *distance);
            let reach = last.map_or(f64::INFINITY, |last| last + rounding(self.wanted.1));
            let is_within = |distance: Option<f64>| distance.is_some_and(|distance| distance <= reach);
            if nearest.len() < most || nearest.last().is_none_or(|(distance, _)| !is_within(*distance)) {
                let within = nearest.into_iter().filter(|(distance, _)| is_within(*distance));
                let vectors = within.map(|(_, vector)| vector).collect();
                return Ok(Found::Page { vectors, is_full: false });
            }
        }
        Ok(Found::TooManyAlike)
    }

    /// By cosine and exactly: every vector of the scope is compared. Those of another model have no distance, and come
    /// last with those that have no direction.
    async fn nearest(&self, most: usize) -> Result<Vec<(Option<f64>, StoredVector)>, CatalogError> {
        let (wanted, dimensions) = &self.wanted;
        let mut args = args![wanted.as_str(), *dimensions as i64, most as i64];
        let of_scope = self.of_scope(&mut args);
        // Within a SELECT of its own the query's vector is read once, not for every row as a prepared plan would.
        let schema = &self.pgvector_schema;
        let sql = format!(
            "SELECT chunks.file_id, chunks.ordinal, chunks.vector, \
             CASE WHEN {schema}.vector_dims(chunks.embedding) = $2 THEN chunks.embedding OPERATOR({schema}.<=>) \
                 (SELECT CAST(CAST($1 AS TEXT) AS {schema}.vector)) END AS distance \
             {of_scope} AND chunks.embedding IS NOT NULL ORDER BY distance LIMIT $3"
        );
        let rows = self.rows(sql, args).await?;
        let decoded = |row: &Row| Ok((row.maybe_real("distance")?.filter(|it| !it.is_nan()), decode(row)?));
        Ok(self.catalog.readable(Table::Chunks, "file_id", &rows, decoded).await)
    }

    /// Only what is ready is found.
    fn of_scope(&self, args: &mut Vec<Arg>) -> String {
        let place = args.len() + 1;
        let owned = match &self.scope {
            Scope::All => String::new(),
            Scope::Tenant(tenant) => {
                args.extend(args![tenant.as_str()]);
                format!("AND files.tenant_id = ${place}")
            }
            Scope::User(tenant, user) => {
                args.extend(args![tenant.as_str(), user.as_str()]);
                format!("AND files.tenant_id = ${place} AND files.user_id = ${}", place + 1)
            }
        };
        format!(
            "FROM files JOIN chunks ON chunks.file_id = files.id \
             WHERE files.pipeline_status = 'ready' AND files.pipeline_status <> 'deleted' {owned}"
        )
    }

    async fn rows(&self, sql: String, args: Vec<Arg>) -> Result<Vec<Row>, CatalogError> {
        let mut reader = self.catalog.reader().await?;
        reader.tx(&self.catalog.faults).rows_built(sql, args).await
    }
}

/// By how much two distances of vectors so long can be put in the wrong order: each of the sums of products and squares
/// is off by a rounding for each number at most.
fn rounding(dimensions: usize) -> f64 {
    4.0 * (dimensions + 1) as f64 * f64::from(f32::EPSILON / 2.0)
}

pub(crate) fn decode(row: &Row) -> Result<StoredVector, CatalogError> {
    Ok(StoredVector {
        file: row.parsed("file_id")?,
        ordinal: row.bytes("ordinal")?,
        vector: from_bytes(&row.blob("vector")?),
    })
}

impl Catalog {
    /// All among which the `limit` nearest to `wanted` can be.
    pub fn candidates(&self, scope: Scope, wanted: &[f32], limit: usize) -> Candidates<'_> {
        let asked = literal(wanted).zip(self.pgvector_schema());
        let next = if asked.is_some() { Step::NotCopied(None) } else { Step::All(None) };
        let (question, pgvector_schema) = asked.unwrap_or_default();
        Candidates { catalog: self, scope, wanted: (question, wanted.len()), pgvector_schema, limit, next }
    }
}
