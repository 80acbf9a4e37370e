//! Writes many items in one transaction. If that fails, one bad item must not block the others.

use wharfinger_catalog::CatalogError;

use crate::core::Core;

/// The results of the written items, and the items that failed with their errors.
pub struct Outcomes<T, R> {
    pub done: Vec<R>,
    pub failed: Vec<(T, CatalogError)>,
}

/// Writes all items at once. If that fails, writes each half, until the failing items are alone. If the catalog is down, it
/// stops with that error.
pub async fn bisect<T, R, F>(
    core: &Core,
    items: Vec<T>,
    act: impl Fn(Vec<T>) -> F,
) -> Result<Outcomes<T, R>, CatalogError>
where
    T: Clone,
    F: Future<Output = Result<Vec<R>, CatalogError>>,
{
    let mut outcomes = Outcomes { done: Vec::new(), failed: Vec::new() };
    let mut left = vec![items];
    while let Some(some) = left.pop() {
        match act(some.clone()).await {
            Ok(done) => outcomes.done.extend(done),
            Err(CatalogError::Fenced) => return Err(CatalogError::Fenced),
            Err(error) => {
                core.catalog.ping().await?;
                match some.as_slice() {
                    [one] => outcomes.failed.push((one.clone(), error)),
                    many => {
                        let (first, second) = many.split_at(many.len() / 2);
                        left.extend([second.to_vec(), first.to_vec()]);
                    }
                }
            }
        }
    }
    Ok(outcomes)
}
