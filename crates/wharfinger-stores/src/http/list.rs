//! Listing page by page, in the order of keys. A listing out of order is an error: the merge with the catalog would
//! report live objects as orphans.

use futures::future::ready;
use futures::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};

use crate::{BlobError, ListedObject};

const OUT_OF_ORDER: &str = "the store does not list its keys in byte order";

/// All entries of all pages. `fetch` takes the marker of a page, and returns its entries and the marker of the next
/// one.
pub(crate) fn pages<'a, T, Marker, Fetched>(
    first: Marker,
    fetch: impl Fn(Marker) -> Fetched + Send + 'a,
) -> BoxStream<'a, Result<T, BlobError>>
where
    T: Send + 'a,
    Marker: Send + 'a,
    Fetched: Future<Output = Result<(Vec<T>, Option<Marker>), BlobError>> + Send + 'a,
{
    stream::try_unfold((Some(first), fetch), |(next, fetch)| async move {
        let Some(marker) = next else { return Ok(None) };
        let (entries, next) = fetch(marker).await?;
        Ok::<_, BlobError>(Some((stream::iter(entries.into_iter().map(Ok)), (next, fetch))))
    })
    .try_flatten()
    .boxed()
}

/// The marker of the next page. A truncated listing without a marker is an error: the keys that it omits would count as
/// absent.
pub(crate) fn next_page<Marker>(
    is_truncated: Option<bool>,
    marker: Option<Marker>,
) -> Result<Option<Marker>, BlobError> {
    match (is_truncated.unwrap_or(false), marker) {
        (true, None) => {
            Err(BlobError::Unavailable("a truncated listing has no marker for its next page".into()))
        }
        (true, marker) => Ok(marker),
        (false, _) => Ok(None),
    }
}

/// The full key that a listing starts after.
pub(crate) fn full_key(prefix: &str, start_after: Option<&str>) -> Option<String> {
    start_after.filter(|after| !after.is_empty()).map(|after| format!("{prefix}{after}"))
}

/// Keeps the objects under the store's prefix and after a key, removes the prefix from their keys, and checks the
/// order.
pub(crate) fn check_order(
    listed: impl Stream<Item = Result<ListedObject, BlobError>> + Send + 'static,
    prefix: &str,
    after: Option<String>,
) -> BoxStream<'static, Result<ListedObject, BlobError>> {
    let (prefix, mut last) = (prefix.to_owned(), None);
    listed
        .try_filter_map(move |listed| ready(check_one(listed, &mut last, &prefix, after.as_deref())))
        .boxed()
}

fn check_one(
    listed: ListedObject,
    last: &mut Option<String>,
    prefix: &str,
    after: Option<&str>,
) -> Result<Option<ListedObject>, BlobError> {
    if last.as_ref().is_some_and(|last| *last >= listed.key) {
        return Err(BlobError::Refused(OUT_OF_ORDER.into()));
    }
    // Some stores cannot start after a key, and list the keys before it too.
    let is_after = after.is_none_or(|after| listed.key.as_str() > after);
    let short = listed.key.strip_prefix(prefix).filter(|_| is_after);
    let short = short.map(|key| ListedObject { key: key.to_owned(), ..listed });
    *last = Some(listed.key);
    Ok(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn names(keys: &'static [&'static str], after: Option<&str>) -> Result<Vec<String>, BlobError> {
        let listed =
            keys.iter().map(|key| Ok(ListedObject { key: (*key).to_owned(), size: 0, modified_at: 0 }));
        let all = check_order(stream::iter(listed), "w/", full_key("w/", after)).try_collect::<Vec<_>>();
        Ok(all.await?.into_iter().map(|listed| listed.key).collect())
    }

    #[tokio::test]
    async fn only_keys_under_the_prefix_and_after_the_start_are_listed() {
        const KEYS: &[&str] = &["v", "w/a", "w/b", "w/c", "x"];
        assert_eq!(names(KEYS, None).await.expect("in order"), ["a", "b", "c"]);
        assert_eq!(names(KEYS, Some("")).await.expect("in order"), ["a", "b", "c"]);
        assert_eq!(names(KEYS, Some("a")).await.expect("in order"), ["b", "c"]);
    }

    #[tokio::test]
    async fn a_wrong_order_is_an_error() {
        for keys in [&["w/b", "w/a"], &["w/a", "w/a"], &["x", "w/a"]] {
            assert!(matches!(names(keys, None).await, Err(BlobError::Refused(_))), "{keys:?}");
        }
    }

    #[tokio::test]
    async fn pages_are_fetched_until_there_is_no_next_one() {
        let fetch = |at: u32| async move {
            let more = next_page(Some(at < 3), Some(at + 1))?;
            Ok::<_, BlobError>((vec![at, at * 10], more))
        };
        let all: Vec<u32> = pages(1, fetch).try_collect().await.expect("pages");
        assert_eq!(all, [1, 10, 2, 20, 3, 30]);
        assert!(matches!(next_page(Some(true), None::<u32>), Err(BlobError::Unavailable(_))));
    }
}
