//! Delays by queues with fixed times. A message waits in the queue with the longest time that is not longer than its
//! delay. It carries the remaining delay to the next queue.

/// One queue for each time. They are constants, because the arguments of an existing queue cannot be changed.
pub(super) const STEPS_MS: [u64; 9] =
    [1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000];

/// The longest delay of the delayed exchange.
const EXCHANGE_STEP_MS_MAX: u64 = u32::MAX as u64;

/// The next wait of a delayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DelayStep {
    pub(super) step_ms: u64,
    /// The remaining delay after this step.
    pub(super) left_ms: u64,
}

/// `None`: the delay is over. A delay below the smallest step waits for that whole step. So a message is late by less than
/// the smallest step, and never early.
pub(super) fn by_queue(delay_ms: u64) -> Option<DelayStep> {
    if delay_ms == 0 {
        return None;
    }
    let step_ms = STEPS_MS.into_iter().rev().find(|step| *step <= delay_ms).unwrap_or(STEPS_MS[0]);
    Some(DelayStep { step_ms, left_ms: delay_ms.saturating_sub(step_ms) })
}

pub(super) fn by_exchange(delay_ms: u64) -> Option<DelayStep> {
    if delay_ms == 0 {
        return None;
    }
    let step_ms = delay_ms.min(EXCHANGE_STEP_MS_MAX);
    Some(DelayStep { step_ms, left_ms: delay_ms - step_ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(mut delay_ms: u64, next_step: impl Fn(u64) -> Option<DelayStep>) -> Vec<u64> {
        let mut steps = Vec::new();
        while let Some(next) = next_step(delay_ms) {
            steps.push(next.step_ms);
            delay_ms = next.left_ms;
        }
        steps
    }

    #[test]
    fn a_delay_equal_to_a_step_takes_one_step() {
        for step in STEPS_MS {
            assert_eq!(steps(step, by_queue), [step]);
        }
        assert_eq!(steps(0, by_queue), [0; 0]);
    }

    #[test]
    fn other_delays_take_several_steps() {
        assert_eq!(steps(4_500_000, by_queue), [3_600_000, 900_000]);
        assert_eq!(steps(2_300, by_queue), [1_000, 1_000, 1_000]);
        assert_eq!(steps(1, by_queue), [1_000]);
    }

    #[test]
    fn the_exchange_needs_several_steps_only_above_its_limit() {
        assert_eq!(steps(4_500_001, by_exchange), [4_500_001]);
        assert_eq!(steps(u64::from(u32::MAX) + 5, by_exchange), [u64::from(u32::MAX), 5]);
    }

    proptest! {
        #[test]
        fn never_early_and_late_by_less_than_the_smallest_step(delay_ms in 0..400 * 86_400_000_u64) {
            let waited: u64 = steps(delay_ms, by_queue).iter().sum();
            prop_assert!(waited >= delay_ms);
            prop_assert!(waited - delay_ms < STEPS_MS[0]);
        }
    }
}
