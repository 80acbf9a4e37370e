//! Whether the store accepts events: in doubt after a failure, down when a batch was given up. While it is down, it is tried
//! from time to time with one waiting batch.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// Set while the store is down: the time of the next trial.
    retry_at: Option<Instant>,
    pause: Duration,
}

impl Health {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns whether the store was down until now.
    pub fn record_success(&self) -> bool {
        std::mem::take(&mut *self.state()).retry_at.is_some()
    }

    /// Counts a failed attempt.
    pub fn record_failure(&self) {
        self.state().failures += 1;
    }

    /// Marks the store as down until the next trial. Returns true if it was not down before.
    pub fn mark_down(&self, random: f64) -> bool {
        let mut state = self.state();
        let was_up = state.retry_at.is_none();
        state.failures += 1;
        state.pause = (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        state.retry_at = Some(Instant::now() + state.pause.mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0));
        was_up
    }

    pub fn is_in_doubt(&self) -> bool {
        self.state().failures > 0
    }

    pub fn is_down(&self) -> bool {
        self.state().retry_at.is_some()
    }

    /// Whether an upload may be tried now. While the store is down, one caller per pause gets true.
    pub fn may_try(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        match state.retry_at {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                state.retry_at = Some(now + PAUSE_MAX);
                true
            }
        }
    }

    /// The caller that could try the store had nothing to upload, so another caller may try at once.
    pub fn trial_unused(&self) {
        let mut state = self.state();
        if state.retry_at.is_some() {
            state.retry_at = Some(Instant::now());
        }
    }

    pub fn retry_at(&self) -> Option<Instant> {
        self.state().retry_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_down_is_tried_once_a_pause() {
        let health = Health::default();
        assert!(health.may_try() && health.may_try());
        health.record_failure();
        assert!(health.is_in_doubt() && !health.is_down() && health.may_try());
        assert!(health.mark_down(0.5), "was not down before");
        let mut before = Duration::ZERO;
        for _ in 0..10 {
            assert!(health.is_down() && !health.may_try());
            let pause = health.retry_at().expect("down") - Instant::now();
            assert!(pause >= before && pause <= PAUSE_MAX * 2, "{pause:?}");
            before = pause;
            tokio::time::advance(pause).await;
            assert!(health.may_try() && !health.may_try(), "only one caller");
            assert!(!health.mark_down(0.5), "was already down");
        }
        tokio::time::advance(PAUSE_MAX * 2).await;
        assert!(health.may_try() && !health.may_try());
        health.trial_unused();
        assert!(health.may_try() && !health.may_try(), "another caller may try at once");
        assert!(health.record_success() && !health.is_in_doubt() && health.may_try() && health.may_try());
        assert!(!health.record_success());
    }
}
