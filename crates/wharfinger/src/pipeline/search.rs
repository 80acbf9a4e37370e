//! Searches the caller's own chunks: compares the query's vector with all of their vectors. If the database has pgvector, it
//! selects the candidates. The scores are always computed here.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{AcquireError, Semaphore};
use tokio_util::sync::CancellationToken;
use wharfinger_catalog::{CatalogError, StoredVector};
use wharfinger_lifecycle::id::{FileId, TenantId, UserId};

use super::StageError;
use crate::core::Core;
use crate::core::{Caller, VerbError};
use crate::pipeline::Pipeline;
use crate::pipeline::remote::EXTERNAL_MODEL;

pub struct Hit {
    pub file: FileId,
    pub file_name: String,
    pub ordinal: u64,
    pub text: String,
    pub score: f32,
}

/// Running searches are limited, because a search may read every vector of its user.
const SEARCHES_MAX: usize = 4;
const PER_USER_MAX: usize = 2;

pub struct Searches {
    slots: Semaphore,
    per_user: Mutex<BTreeMap<(TenantId, UserId), usize>>,
}

impl Default for Searches {
    fn default() -> Self {
        Searches { slots: Semaphore::new(SEARCHES_MAX), per_user: Mutex::default() }
    }
}

/// Counts a running search of a user until it is dropped.
struct SearchGuard<'s> {
    searches: &'s Searches,
    user: (TenantId, UserId),
}

impl Searches {
    fn start(&self, caller: &Caller) -> Result<SearchGuard<'_>, VerbError> {
        let user = (caller.tenant.clone(), caller.user.clone());
        let mut per_user = self.per_user.lock().unwrap_or_else(PoisonError::into_inner);
        let count = per_user.entry(user.clone()).or_default();
        if *count >= PER_USER_MAX {
            return Err(VerbError::RateLimited(
                "This user already has two running searches. Try again when one has finished.",
            ));
        }
        *count += 1;
        Ok(SearchGuard { searches: self, user })
    }

    /// How many searches are running or wait for a slot.
    pub fn running(&self) -> usize {
        self.per_user.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

impl Drop for SearchGuard<'_> {
    fn drop(&mut self) {
        let mut per_user = self.searches.per_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = per_user.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                per_user.remove(&self.user);
            }
        }
    }
}

pub async fn search(
    pipeline: &Pipeline,
    caller: &Caller,
    query: &str,
    limit: usize,
) -> Result<Vec<Hit>, VerbError> {
    let core = &pipeline.core;
    let searches = &pipeline.searches;
    let _guard = searches.start(caller)?;
    let closed = |error: AcquireError| VerbError::Unavailable(error.to_string());
    let _slot = searches.slots.acquire().await.map_err(closed)?;
    let wanted = match pipeline.embedder.embed(vec![query.to_owned()]).await {
        Ok(mut vectors) => vectors.pop().unwrap_or_default(),
        Err(StageError::Permanent(why)) => return Err(VerbError::invalid("query", why)),
        Err(error) => return Err(VerbError::Unavailable(error.to_string())),
    };
    let mut best = Best { limit, found: BTreeSet::new() };
    let mut candidates = core.catalog.candidates(
        caller.own_scope(),
        [pipeline.embedder.model(), EXTERNAL_MODEL],
        &wanted,
        limit,
    );
    while let Some(page) = candidates.next_page().await? {
        for stored in page {
            // Vectors of another length cannot be compared.
            if let Some(score) = cosine(&wanted, &stored.vector) {
                best.offer(score, &stored);
            }
        }
    }
    let mut hits = Vec::new();
    for found in best.found {
        let chunk = readable(core.catalog.chunks(found.file, found.ordinal, 1).await)?;
        let file = readable(core.catalog.file(found.file).await)?;
        // Deleted during the search.
        let (Some(chunk), Some(file)) = (chunk.and_then(|mut page| page.pop()), file.flatten()) else {
            continue;
        };
        hits.push(Hit {
            file: file.id,
            file_name: file.name,
            ordinal: chunk.ordinal,
            text: chunk.text,
            score: found.score,
        });
    }
    Ok(hits)
}

/// A hit that cannot be read is left out, and the others are returned.
fn readable<T>(found: Result<T, CatalogError>) -> Result<Option<T>, CatalogError> {
    match found {
        Err(CatalogError::Corrupt(_)) => Ok(None),
        other => other.map(Some),
    }
}

/// Copies vectors to the pgvector column that are not there yet.
pub async fn copy_vectors(core: &Core, stop: &CancellationToken) -> Result<(), VerbError> {
    let mut after = None;
    while !stop.is_cancelled() {
        after = core.catalog.copy_vectors(after).await?;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

/// The cosine similarity. None if it is not positive or the vectors cannot be compared. Computed with 64 bits, so that
/// rounding errors are far below the precision of the 32-bit result.
fn cosine(one: &[f32], other: &[f32]) -> Option<f32> {
    if one.len() != other.len() {
        return None;
    }
    let (mut dot, mut one_square, mut other_square) = (0.0f64, 0.0f64, 0.0f64);
    for (a, b) in one.iter().zip(other) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        dot += a * b;
        one_square += a * a;
        other_square += b * b;
    }
    let length = one_square.sqrt() * other_square.sqrt();
    (length > 0.0).then(|| (dot / length) as f32).filter(|score| *score > 0.0)
}

/// The best hits so far, best first, without duplicates.
struct Best {
    limit: usize,
    found: BTreeSet<Found>,
}

struct Found {
    score: f32,
    file: FileId,
    ordinal: u64,
}

impl Best {
    fn offer(&mut self, score: f32, stored: &StoredVector) {
        self.found.insert(Found { score, file: stored.file, ordinal: stored.ordinal });
        if self.found.len() > self.limit {
            self.found.pop_last();
        }
    }
}

/// A better hit sorts first. Equal scores are ordered by file and chunk.
impl Ord for Found {
    fn cmp(&self, other: &Found) -> Ordering {
        let by_slot = (self.file, self.ordinal).cmp(&(other.file, other.ordinal));
        other.score.total_cmp(&self.score).then(by_slot)
    }
}

impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Found) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Found {
    fn eq(&self, other: &Found) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Found {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_compares_directions() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), Some(1.0));
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), None);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 2.0]), None);
        assert_eq!(cosine(&[1.0], &[1.0, 0.0]), None);
    }

    #[test]
    fn the_best_hits_are_kept_in_order() {
        let file = FileId(uuid::Uuid::nil());
        let mut best = Best { limit: 2, found: BTreeSet::new() };
        for (ordinal, score) in [(0, 0.5), (1, 0.9), (2, 0.1), (3, 0.7), (4, 0.9), (1, 0.9)] {
            best.offer(score, &StoredVector { file, ordinal, vector: Vec::new() });
        }
        let kept: Vec<u64> = best.found.iter().map(|found| found.ordinal).collect();
        assert_eq!(kept, [1, 4]);
    }
}
