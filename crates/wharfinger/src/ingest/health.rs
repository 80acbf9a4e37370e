//! Whether the store takes events: in doubt after a failure, down after many. While it is down it is tried now and then
//! with a batch that waits anyway.

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
    /// Down: nothing is tried before this.
    rests_until: Option<Instant>,
    pause: Duration,
}

impl Health {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Answers whether it was down until now.
    pub fn succeeded(&self) -> bool {
        std::mem::take(&mut *self.state()).rests_until.is_some()
    }

    /// One attempt failed; another may not.
    pub fn failed(&self) {
        self.state().failures += 1;
    }

    /// Nobody went on trying, for now. Answers whether that is news.
    pub fn gave_up(&self, random: f64) -> bool {
        let mut state = self.state();
        let is_news = state.rests_until.is_none();
        state.failures += 1;
        state.pause = (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        state.rests_until = Some(Instant::now() + state.pause.mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0));
        is_news
    }

    pub fn is_in_doubt(&self) -> bool {
        self.state().failures > 0
    }

    pub fn is_down(&self) -> bool {
        self.state().rests_until.is_some()
    }

    /// Whether the store may be asked now. While it is down: one of those who ask, once a pause.
    pub fn may_try(&self) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        match state.rests_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                state.rests_until = Some(now + PAUSE_MAX);
                true
            }
        }
    }

    /// Who was to try it had nothing to try it with.
    pub fn was_not_tried(&self) {
        let mut state = self.state();
        if state.rests_until.is_some() {
            state.rests_until = Some(Instant::now());
        }
    }

    pub fn rests_until(&self) -> Option<Instant> {
        self.state().rests_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_down_is_tried_once_a_pause() {
        let health = Health::default();
        assert!(health.may_try() && health.may_try());
        health.failed();
        assert!(health.is_in_doubt() && !health.is_down() && health.may_try());
        assert!(health.gave_up(0.5), "news");
        let mut before = Duration::ZERO;
        for _ in 0..10 {
            assert!(health.is_down() && !health.may_try());
            let pause = health.rests_until().expect("it rests") - Instant::now();
            assert!(pause >= before && pause <= PAUSE_MAX * 2, "{pause:?}");
            before = pause;
            tokio::time::advance(pause).await;
            assert!(health.may_try() && !health.may_try(), "one of those who ask");
            assert!(!health.gave_up(0.5), "no news");
        }
        tokio::time::advance(PAUSE_MAX * 2).await;
        assert!(health.may_try() && !health.may_try());
        health.was_not_tried();
        assert!(health.may_try() && !health.may_try(), "another may, at once");
        assert!(health.succeeded() && !health.is_in_doubt() && health.may_try() && health.may_try());
        assert!(!health.succeeded());
    }
}
