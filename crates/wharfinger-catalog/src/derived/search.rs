//! The vectors that a search has to compare, of the ready files of a scope. With pgvector these are the nearest and those
//! that pgvector cannot compare; without it all. The caller computes the scores, so they do not depend on pgvector.

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
/// Extra vectors that are read to find those whose distance is equal to the last one within rounding errors.
const SPARE_VECTORS: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub struct StoredVector {
    pub file: FileId,
    pub ordinal: u64,
    pub vector: Vec<f32>,
}

/// A superset of the nearest vectors, page by page. A vector may occur twice.
pub struct Candidates<'c> {
    catalog: &'c Catalog,
    scope: Scope,
    /// Vectors of other models are not compared, even if they have the same length.
    models: [String; 2],
    /// The query vector as text for pgvector, and its length.
    query: (String, usize),
    pgvector_schema: Arc<str>,
    limit: usize,
    next: Phase,
}

/// A cursor in the order of files and their chunks.
type Cursor = Option<(FileId, u64)>;

enum Phase {
    /// Vectors that are not copied to pgvector. They come first: a vector that is copied during the search is then found
    /// twice; in the other order it could be missed.
    NotCopied(Cursor),
    Nearest,
    All(Cursor),
    Done,
}

enum CandidatePage {
    Page {
        vectors: Vec<StoredVector>,
        /// There may be more pages.
        is_full: bool,
    },
    /// More vectors than a page have equal distances within rounding errors.
    TooManyTies,
}

impl Candidates<'_> {
    pub async fn next_page(&mut self) -> Result<Option<Vec<StoredVector>>, CatalogError> {
        loop {
            let page = match self.next {
                Phase::Done => return Ok(None),
                Phase::NotCopied(after) => self.page("AND chunks.embedding IS NULL", after).await,
                Phase::Nearest => self.nearest().await,
                Phase::All(after) => self.page("", after).await,
            };
            let page = match page {
                Ok(CandidatePage::TooManyTies) => {
                    self.next = Phase::All(None);
                    continue;
                }
                Ok(CandidatePage::Page { vectors, is_full }) => (vectors, is_full),
                Err(error) if self.relies_on_pgvector() && self.catalog.has_lost_pgvector(&error).await => {
                    self.next = Phase::All(None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (page, is_full) = page;
            let last = page.last().filter(|_| is_full).map(|one| (one.file, one.ordinal));
            self.next = match (&self.next, last) {
                (Phase::NotCopied(_), Some(last)) => Phase::NotCopied(Some(last)),
                (Phase::NotCopied(_), None) => Phase::Nearest,
                (Phase::All(_), Some(last)) => Phase::All(Some(last)),
                _ => Phase::Done,
            };
            return Ok(Some(page));
        }
    }

    fn relies_on_pgvector(&self) -> bool {
        matches!(self.next, Phase::NotCopied(_) | Phase::Nearest)
    }

    async fn page(&self, which: &str, after: Cursor) -> Result<CandidatePage, CatalogError> {
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
        Ok(CandidatePage::Page { vectors, is_full })
    }

    /// The nearest by pgvector, which computes with 32 bits, and all that may be as near in 64 bits.
    async fn nearest(&self) -> Result<CandidatePage, CatalogError> {
        for most in [self.limit + SPARE_VECTORS, PAGE_VECTORS] {
            let nearest = self.read_nearest(most).await?;
            let last = nearest.get(self.limit.saturating_sub(1)).and_then(|(distance, _)| *distance);
            let reach = last.map_or(f64::INFINITY, |last| last + rounding(self.query.1));
            let is_within = |distance: Option<f64>| distance.is_some_and(|distance| distance <= reach);
            if nearest.len() < most || nearest.last().is_none_or(|(distance, _)| !is_within(*distance)) {
                let within = nearest.into_iter().filter(|(distance, _)| is_within(*distance));
                let vectors = within.map(|(_, vector)| vector).collect();
                return Ok(CandidatePage::Page { vectors, is_full: false });
            }
        }
        Ok(CandidatePage::TooManyTies)
    }

    /// By cosine distance, without an approximate index: each vector of the scope is compared. Vectors of another length and
    /// zero vectors have no distance and come last.
    async fn read_nearest(&self, most: usize) -> Result<Vec<(Option<f64>, StoredVector)>, CatalogError> {
        let (query, dimensions) = &self.query;
        let mut args = args![query.as_str(), *dimensions as i64, most as i64];
        let of_scope = self.of_scope(&mut args);
        // In a subquery the query vector is parsed once. Otherwise a prepared plan parses it for each row.
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

    /// Only ready files are searched.
    fn of_scope(&self, args: &mut Vec<Arg>) -> String {
        args.extend(args![self.models[0].as_str(), self.models[1].as_str()]);
        let place = args.len() + 1;
        let model = format!("AND chunks.model IN (${}, ${})", place - 2, place - 1);
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
             WHERE files.pipeline_status = 'ready' AND files.pipeline_status <> 'deleted' {owned} {model}"
        )
    }

    async fn rows(&self, sql: String, args: Vec<Arg>) -> Result<Vec<Row>, CatalogError> {
        let mut reader = self.catalog.reader().await?;
        reader.tx(&self.catalog.faults).rows_built(sql, args).await
    }
}

/// The maximum rounding error between two distances of vectors of this length. The sums of products and squares have at
/// most one rounding error for each number.
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
    /// A superset of the `limit` vectors of these models that are nearest to `query`.
    pub fn candidates(&self, scope: Scope, models: [&str; 2], query: &[f32], limit: usize) -> Candidates<'_> {
        let models = models.map(str::to_owned);
        let with_pgvector = literal(query).zip(self.pgvector_schema());
        let next = if with_pgvector.is_some() { Phase::NotCopied(None) } else { Phase::All(None) };
        let (text, pgvector_schema) = with_pgvector.unwrap_or_default();
        Candidates { catalog: self, scope, models, query: (text, query.len()), pgvector_schema, limit, next }
    }
}
