//! Many in one transaction, and what to do when that fails: one that cannot be written must not hold up the others.

use wharfinger_catalog::CatalogError;

use crate::core::Core;

/// What became of some, and of which of them it is not known because of which error.
pub struct Outcomes<T, R> {
    pub done: Vec<R>,
    pub failed: Vec<(T, CatalogError)>,
}

/// Does it to all at once; where that fails, to each half, until those that fail are alone. A catalog that is away is no
/// fault of any of them, and ends this.
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
