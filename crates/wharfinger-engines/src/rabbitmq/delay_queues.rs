//! Delays as a delay_queues of fixed steps: a message waits on the largest step that is not too long, and what is left
//! of its delay it carries along to the next.

/// One queue each. They are constants and no settings, because the arguments of a queue cannot be changed.
pub(super) const STEPS_MS: [u64; 9] =
    [1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000];

/// What the delayed exchange can wait for at once.
const EXCHANGE_STEP_MS_MAX: u64 = u32::MAX as u64;

/// The next stretch of a message's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) step_ms: u64,
    /// What is left when the step is over.
    pub(super) left_ms: u64,
}

/// No hop: the delay is over. Less than the smallest step waits for all of it, so that a message is late by less
/// than that, and never early.
pub(super) fn by_queue(delay_ms: u64) -> Option<Hop> {
    if delay_ms == 0 {
        return None;
    }
    let step_ms = STEPS_MS.into_iter().rev().find(|step| *step <= delay_ms).unwrap_or(STEPS_MS[0]);
    Some(Hop { step_ms, left_ms: delay_ms.saturating_sub(step_ms) })
}

pub(super) fn by_exchange(delay_ms: u64) -> Option<Hop> {
    if delay_ms == 0 {
        return None;
    }
    let step_ms = delay_ms.min(EXCHANGE_STEP_MS_MAX);
    Some(Hop { step_ms, left_ms: delay_ms - step_ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn way(mut delay_ms: u64, hop: impl Fn(u64) -> Option<Hop>) -> Vec<u64> {
        let mut steps = Vec::new();
        while let Some(next) = hop(delay_ms) {
            steps.push(next.step_ms);
            delay_ms = next.left_ms;
        }
        steps
    }

    #[test]
    fn each_delay_queue_is_one_hop() {
        for step in STEPS_MS {
            assert_eq!(way(step, by_queue), [step]);
        }
        assert_eq!(way(0, by_queue), [0; 0]);
    }

    #[test]
    fn other_delays_take_several_hops() {
        assert_eq!(way(4_500_000, by_queue), [3_600_000, 900_000]);
        assert_eq!(way(2_300, by_queue), [1_000, 1_000, 1_000]);
        assert_eq!(way(1, by_queue), [1_000]);
    }

    #[test]
    fn the_exchange_hops_only_where_its_timer_ends() {
        assert_eq!(way(4_500_001, by_exchange), [4_500_001]);
        assert_eq!(way(u64::from(u32::MAX) + 5, by_exchange), [u64::from(u32::MAX), 5]);
    }

    proptest! {
        #[test]
        fn never_early_and_late_by_less_than_the_smallest_step(delay_ms in 0..400 * 86_400_000_u64) {
            let waited: u64 = way(delay_ms, by_queue).iter().sum();
            prop_assert!(waited >= delay_ms);
            prop_assert!(waited - delay_ms < STEPS_MS[0]);
        }
    }
}
