//! The pauses before retries, with a limit for each call.

use std::time::Duration;

use reqwest::header::HeaderMap;
use uuid::Uuid;

use wharfinger_calls::http::from_http_date;
use wharfinger_calls::http::header;

const FIRST: Duration = Duration::from_millis(250);
/// The maximum number of pauses, for servers that ask for very short pauses.
const PAUSES_MAX: u32 = 8;
const ASKED_FOR_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The remaining pauses of one call.
pub(super) struct RetryPauses {
    left: Duration,
    count: u32,
}

impl RetryPauses {
    pub(super) fn up_to(left: Duration) -> RetryPauses {
        RetryPauses { left, count: 0 }
    }

    /// Pauses as long as the server asks, or with exponential backoff. Returns false immediately if the call may not
    /// pause so long.
    pub(super) async fn pause(&mut self, asked_for: Option<Duration>) -> bool {
        let pause = self.next(asked_for);
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        pause.is_some()
    }

    fn next(&mut self, asked_for: Option<Duration>) -> Option<Duration> {
        // A random part keeps processes from retrying together. The pause is never shorter than asked.
        let (minimum, random) = match asked_for {
            Some(asked_for) => (asked_for, FIRST),
            None => (FIRST * 2_u32.pow(self.count) / 2, FIRST * 2_u32.pow(self.count) / 2),
        };
        let pause = minimum + random_part(random);
        if self.count == PAUSES_MAX || pause > self.left {
            return None;
        }
        self.count += 1;
        self.left -= pause;
        Some(pause)
    }
}

/// A random part of a duration.
fn random_part(whole: Duration) -> Duration {
    let thousandths = Uuid::new_v4().as_u64_pair().1 % 1_000;
    whole * u32::try_from(thousandths).expect("less than a thousand") / 1_000
}

/// The pause that the server asks for. A date is compared with the date of the answer, so the local clock does not
/// matter.
pub(super) fn asked_for(headers: &HeaderMap) -> Option<Duration> {
    let number = |name| header(headers, name)?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1_000.0).or_else(|| number("retry-after"));
    let seconds = seconds.or_else(|| {
        let until = from_http_date(header(headers, "retry-after")?.trim())?;
        let now = from_http_date(header(headers, "date")?.trim())?;
        let ms = u64::try_from(until.saturating_sub(now)).unwrap_or(0);
        Some(Duration::from_millis(ms).as_secs_f64())
    })?;
    Duration::try_from_secs_f64(seconds).ok().map(|pause| pause.min(ASKED_FOR_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
            .collect()
    }

    #[test]
    fn the_pause_is_read_from_all_header_forms() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (pairs, expected_ms) in [
            (&[("retry-after", "7")][..], Some(7_000)),
            (&[("retry-after", "0.5")], Some(500)),
            (&[("retry-after-ms", "250"), ("retry-after", "1")], Some(250)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:57 GMT"), date], Some(20_000)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT"), date], Some(0)),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:57 GMT")], None),
            (&[("retry-after", "99999999999999999999999")], None),
            (&[("retry-after", "1e9")], Some(86_400_000)),
            (&[("retry-after", "-3")], None),
            (&[("retry-after", "NaN")], None),
            (&[("retry-after", "soon")], None),
            (&[], None),
        ] {
            assert_eq!(asked_for(&headers(pairs)), expected_ms.map(Duration::from_millis), "{pairs:?}");
        }
    }

    #[test]
    fn the_pauses_of_a_call_have_a_total_and_a_count_limit() {
        let mut pauses = RetryPauses::up_to(Duration::from_secs(20));
        let taken: Vec<Duration> = std::iter::from_fn(|| pauses.next(None)).collect();
        let sum: Duration = taken.iter().sum();
        assert!(taken.len() >= 5 && sum <= Duration::from_secs(20), "{taken:?}");
        for (n, pause) in (0..).zip(&taken) {
            let longest = FIRST * 2_u32.pow(n);
            assert!(*pause >= longest / 2 && *pause <= longest, "{taken:?}");
        }

        let mut pauses = RetryPauses::up_to(Duration::from_secs(20));
        assert!(
            pauses.next(Some(Duration::from_secs(21))).is_none(),
            "a pause over the total is left to the caller"
        );
        let asked_for = Some(Duration::from_secs(9));
        assert!(pauses.next(asked_for).is_some_and(|pause| pause >= Duration::from_secs(9)));
        assert!(pauses.next(asked_for).is_some());
        assert!(pauses.next(asked_for).is_none());

        let mut pauses = RetryPauses::up_to(Duration::from_secs(20));
        let short = std::iter::from_fn(|| pauses.next(Some(Duration::ZERO))).count();
        assert_eq!(short, 8, "the count is limited even for short pauses");
    }
}
