//! How long to wait before the next attempt.

/// Doubles from `base_ms` to `cap_ms`; the upper half of each step is random, so that what failed together
/// does not come back together. `random` is in `0.0..1.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub base_ms: u64,
    pub cap_ms: u64,
}

impl Backoff {
    /// `attempt` counts from 1: the wait after the first failure.
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
        fn between_half_and_whole_of_a_growing_step(attempt in 1u32..10_000, random in 0.0f64..1.0) {
            let backoff = Backoff { base_ms: 1_000, cap_ms: 3_600_000 };
            let delay = backoff.delay_ms(attempt, random);
            prop_assert!(delay >= 500);
            prop_assert!(delay <= 3_600_000);
            prop_assert!(backoff.delay_ms(attempt + 1, 0.0) >= backoff.delay_ms(attempt, 0.0));
        }
    }
}
