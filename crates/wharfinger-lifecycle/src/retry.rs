//! The wait before the next attempt.

/// Exponential backoff from `base_ms` to `cap_ms`. The upper half of each wait is random, so that callers that failed
/// together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub base_ms: u64,
    pub cap_ms: u64,
}

impl Backoff {
    /// `attempt` 1 gives the wait after the first failure. `random` is in `0.0..1.0`.
    pub fn delay_ms(self, attempt: u32, random: f64) -> u64 {
        let doubled = self.base_ms.saturating_mul(1u64 << attempt.saturating_sub(1).min(40));
        let step = doubled.min(self.cap_ms);
        let half = step / 2;
        half + ((step - half) as f64 * random.clamp(0.0, 1.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_delay_grows_and_stays_below_the_cap(attempt in 1u32..10_000, random in 0.0f64..1.0) {
            let backoff = Backoff { base_ms: 1_000, cap_ms: 3_600_000 };
            let delay = backoff.delay_ms(attempt, random);
            prop_assert!(delay >= 500);
            prop_assert!(delay <= 3_600_000);
            prop_assert!(backoff.delay_ms(attempt + 1, 0.0) >= backoff.delay_ms(attempt, 0.0));
        }
    }
}
