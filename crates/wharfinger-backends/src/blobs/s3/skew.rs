//! How far this machine's clock is from the store's, read off the dates of its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::DateTime;
use aws_smithy_types::config_bag::ConfigBag;
use aws_smithy_types::date_time::Format;

/// The dates of answers are whole seconds, and an answer takes its time.
const UNSURE_MS: i64 = 5_000;

#[derive(Debug, Default)]
pub(super) struct Skew {
    ahead_ms: AtomicI64,
}

impl Skew {
    /// How far this machine is ahead; zero for what may be no more than the answer's way here.
    pub(super) fn ahead_ms(&self) -> i64 {
        let ahead = self.ahead_ms.load(Ordering::Relaxed);
        if ahead.abs() <= UNSURE_MS { 0 } else { ahead }
    }

    pub(super) fn store_time(&self) -> SystemTime {
        let ahead = self.ahead_ms();
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead > 0 { SystemTime::now() - by } else { SystemTime::now() + by }
    }

    fn read(&self, date: &str) {
        let there = DateTime::from_str(date, Format::HttpDate).ok().and_then(|at| at.to_millis().ok());
        let Some(there) = there else { return };
        let Ok(here) = SystemTime::now().duration_since(UNIX_EPOCH) else { return };
        let here = i64::try_from(here.as_millis()).unwrap_or(i64::MAX);
        self.ahead_ms.store(here.saturating_sub(there), Ordering::Relaxed);
    }
}

/// Reads the date of every answer.
#[derive(Debug)]
pub(super) struct ReadDates(pub(super) Arc<Skew>);

impl Intercept for ReadDates {
    fn name(&self) -> &'static str {
        "ReadDates"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _runtime_components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date") {
            self.0.read(date);
        }
        Ok(())
    }
}
