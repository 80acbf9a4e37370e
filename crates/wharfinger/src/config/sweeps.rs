//! The settings of the sweeps: schedules and thresholds.

use croner::Cron;
use croner::parser::CronParser;
use wharfinger_lifecycle::retention::FailureRetention;

use super::layers::Values;
use super::{BadSetting, DAY_MS, DURATION_MS_MAX};

#[derive(Clone, Debug)]
pub struct SweepSettings {
    pub window_schedule: Cron,
    pub stuck_schedule: Cron,
    pub orphan_schedule: Cron,
    pub batch_timeout_schedule: Cron,
    pub cleanup_schedule: Cron,
    pub quota_sync_schedule: Cron,
    pub stuck_retries_max: u32,
    pub abandoned_after_ms: i64,
    pub failures: FailureRetention,
    /// None: quarantined files are never deleted.
    pub quarantine: Option<FailureRetention>,
    pub orphan_grace_ms: i64,
    /// None: no limit.
    pub orphan_limit_percent: Option<u8>,
    pub deletion_log_ms: i64,
    pub audit_log_ms: i64,
}

impl SweepSettings {
    pub(super) fn from_values(values: &Values) -> Result<SweepSettings, BadSetting> {
        let warning_ms = days_or_ms("FAILED_FILE_WARNING_DAYS", "FAILED_FILE_WARNING_MS", values)?;
        Ok(SweepSettings {
            window_schedule: cron("UPLOAD_WINDOW_SCHEDULE", values)?,
            stuck_schedule: cron("STUCK_RECOVERY_SCHEDULE", values)?,
            orphan_schedule: cron("ORPHAN_CLEANUP_SCHEDULE", values)?,
            batch_timeout_schedule: cron("BATCH_TIMEOUT_SCHEDULE", values)?,
            cleanup_schedule: cron("CLEANUP_SWEEP_SCHEDULE", values)?,
            quota_sync_schedule: cron("QUOTA_SYNC_SCHEDULE", values)?,
            stuck_retries_max: values.integer("MAX_STUCK_RETRIES", 0, 1_000)? as u32,
            abandoned_after_ms: values.duration_ms("ABANDONED_UPLOAD_THRESHOLD_MS", 1, DURATION_MS_MAX)?
                as i64,
            failures: FailureRetention {
                keep_ms: days_or_ms("FAILED_FILE_RETENTION_DAYS", "FAILED_FILE_RETENTION_MS", values)?,
                warning_ms,
            },
            quarantine: match values.duration_ms("QUARANTINE_RETENTION_DAYS", 0, DURATION_MS_MAX)? {
                0 => None,
                keep_ms => Some(FailureRetention { keep_ms: keep_ms as i64, warning_ms }),
            },
            orphan_grace_ms: values.duration_ms("ORPHAN_BLOB_GRACE_MS", 0, DURATION_MS_MAX)? as i64,
            orphan_limit_percent: match values.integer("ORPHAN_DELETE_LIMIT_PERCENT", 0, 100)? {
                0 => None,
                percent => Some(percent as u8),
            },
            audit_log_ms: values.duration_ms("AUDIT_LOG_DAYS", DAY_MS, DURATION_MS_MAX)? as i64,
            deletion_log_ms: values.duration_ms("DELETION_LOG_DAYS", DAY_MS, DURATION_MS_MAX)? as i64,
        })
    }
}

/// If both are set, milliseconds win.
fn days_or_ms(days: &'static str, ms: &'static str, values: &Values) -> Result<i64, BadSetting> {
    let name = if values.get(ms).is_some() { ms } else { days };
    Ok(values.duration_ms(name, 0, DURATION_MS_MAX)? as i64)
}

fn cron(name: &'static str, values: &Values) -> Result<Cron, BadSetting> {
    let text = values.schedule(name)?;
    let schedule = CronParser::new().parse(&text).map_err(|error| {
        BadSetting::new(name, format!("`{text}` is not a cron schedule like `*/5 * * * *`: {error}"))
    })?;
    let start = crate::clock::to_utc(0);
    if schedule.find_next_occurrence(&start, false).is_err() {
        return Err(BadSetting::new(
            name,
            format!("`{text}` matches no date, use a schedule like `0 3 * * *`"),
        ));
    }
    Ok(schedule)
}
