//! Listing page by page, in the order of keys. A store that lists out of order gets an error: a merge with the catalog
//! would take living objects for orphans.

use futures::future::ready;
use futures::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};

use crate::{BlobError, Listed};

const OUT_OF_ORDER: &str = "the store does not list its keys in the order of their bytes";

/// All entries of all pages. A page is asked for by where it begins, and tells where the next one does.
pub(crate) fn pages<'a, T, At, Asked>(
    first: At,
    ask: impl Fn(At) -> Asked + Send + 'a,
) -> BoxStream<'a, Result<T, BlobError>>
where
    T: Send + 'a,
    At: Send + 'a,
    Asked: Future<Output = Result<(Vec<T>, Option<At>), BlobError>> + Send + 'a,
{
    stream::try_unfold((Some(first), ask), |(next, ask)| async move {
        let Some(at) = next else { return Ok(None) };
        let (entries, next) = ask(at).await?;
        Ok::<_, BlobError>(Some((stream::iter(entries.into_iter().map(Ok)), (next, ask))))
    })
    .try_flatten()
    .boxed()
}

/// Where the next page begins. A listing that breaks off is an error: what it leaves out would be taken for absent.
pub(crate) fn next<At>(is_truncated: Option<bool>, marker: Option<At>) -> Result<Option<At>, BlobError> {
    match (is_truncated.unwrap_or(false), marker) {
        (true, None) => Err(BlobError::Unavailable("a listing breaks off without saying where".into())),
        (true, marker) => Ok(marker),
        (false, _) => Ok(None),
    }
}

/// The full name of the key that a listing starts after.
pub(crate) fn full_after(prefix: &str, start_after: Option<&str>) -> Option<String> {
    start_after.filter(|after| !after.is_empty()).map(|after| format!("{prefix}{after}"))
}

/// The store's own objects after a key, named without its prefix, out of what is listed by full names.
pub(crate) fn in_order(
    listed: impl Stream<Item = Result<Listed, BlobError>> + Send + 'static,
    prefix: &str,
    after: Option<String>,
) -> BoxStream<'static, Result<Listed, BlobError>> {
    let (prefix, mut last) = (prefix.to_owned(), None);
    listed.try_filter_map(move |listed| ready(place(listed, &mut last, &prefix, after.as_deref()))).boxed()
}

fn place(
    listed: Listed,
    last: &mut Option<String>,
    prefix: &str,
    after: Option<&str>,
) -> Result<Option<Listed>, BlobError> {
    if last.as_ref().is_some_and(|last| *last >= listed.key) {
        return Err(BlobError::Refused(OUT_OF_ORDER.into()));
    }
    // Some stores cannot start after a key, and list what comes before it too.
    let is_after = after.is_none_or(|after| listed.key.as_str() > after);
    let short = listed.key.strip_prefix(prefix).filter(|_| is_after);
    let short = short.map(|key| Listed { key: key.to_owned(), ..listed });
    *last = Some(listed.key);
    Ok(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn names(keys: &'static [&'static str], after: Option<&str>) -> Result<Vec<String>, BlobError> {
        let listed = keys.iter().map(|key| Ok(Listed { key: (*key).to_owned(), size: 0, modified_at: 0 }));
        let all = in_order(stream::iter(listed), "w/", full_after("w/", after)).try_collect::<Vec<_>>();
        Ok(all.await?.into_iter().map(|listed| listed.key).collect())
    }

    #[tokio::test]
    async fn only_our_own_keys_are_listed_and_only_after_the_start() {
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
    async fn pages_are_asked_for_until_there_is_no_next_one() {
        let ask = |at: u32| async move {
            let more = next(Some(at < 3), Some(at + 1))?;
            Ok::<_, BlobError>((vec![at, at * 10], more))
        };
        let all: Vec<u32> = pages(1, ask).try_collect().await.expect("pages");
        assert_eq!(all, [1, 10, 2, 20, 3, 30]);
        assert!(matches!(next(Some(true), None::<u32>), Err(BlobError::Unavailable(_))));
    }
}
