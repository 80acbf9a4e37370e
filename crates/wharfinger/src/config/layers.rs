//! The layers of settings, and where each value was set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::BadSetting;
use super::duration::{format_ms, parse_go_ms};
use super::size::parse_size;

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub env: &'static str,
    pub secret: bool,
    /// An empty variable is a valid value, and does not count as unset.
    takes_empty: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Other,
    /// A number without a unit counts in this one. `None`: a unit is needed.
    Duration(Option<Unit>),
    Cron,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    ms: u64,
    name: &'static str,
}

const MS: Option<Unit> = Some(Unit { ms: 1, name: "milliseconds" });
const SECONDS: Option<Unit> = Some(Unit { ms: 1_000, name: "seconds" });
const DAYS: Option<Unit> = Some(Unit { ms: 86_400_000, name: "days" });

impl Setting {
    /// Its key in a settings file.
    pub fn key(&self) -> String {
        self.env.trim_start_matches("WHARFINGER_").to_ascii_lowercase()
    }
}

const fn plain(env: &'static str) -> Setting {
    Setting { env, secret: false, takes_empty: false, kind: Kind::Other }
}

const fn list(env: &'static str) -> Setting {
    Setting { takes_empty: true, ..plain(env) }
}

const fn secret(env: &'static str) -> Setting {
    Setting { secret: true, ..plain(env) }
}

const fn duration(env: &'static str, unit: Option<Unit>) -> Setting {
    Setting { kind: Kind::Duration(unit), ..plain(env) }
}

const fn cron(env: &'static str) -> Setting {
    Setting { kind: Kind::Cron, ..plain(env) }
}

pub const SETTINGS: &[Setting] = &[
    plain("WHARFINGER_LISTEN"),
    plain("WHARFINGER_PUBLIC_URL"),
    plain("WHARFINGER_CORS_ORIGINS"),
    plain("WHARFINGER_METRICS"),
    plain("WHARFINGER_METRICS_LISTEN"),
    plain("WHARFINGER_CONNECTIONS_PER_ADDRESS"),
    plain("WHARFINGER_TRUSTED_PROXIES"),
    plain("INSTANCE_ID"),
    plain("ACCESS_LOG"),
    duration("SHUTDOWN_DRAIN_MS", MS),
    plain("WHARFINGER_DATA_DIR"),
    secret("WHARFINGER_DATABASE_URL"),
    plain("WHARFINGER_DATABASE_SCHEMA"),
    plain("WHARFINGER_BLOB_URL"),
    plain("WHARFINGER_BLOB_PUBLIC_ENDPOINT"),
    secret("WHARFINGER_QUOTA_URL"),
    plain("QUOTA_WITHOUT_REDIS"),
    duration("QUOTA_REDIS_TIMEOUT_MS", MS),
    plain("REDIS_PREFIX"),
    secret("WHARFINGER_BROKER_URL"),
    plain("AMQP_DELAYED_EXCHANGE"),
    plain("AMQP_PREFIX"),
    secret("WHARFINGER_JWT_SECRET"),
    plain("WHARFINGER_JWKS_FILE"),
    plain("WHARFINGER_JWKS_URL"),
    plain("WHARFINGER_JWT_ISSUER"),
    plain("WHARFINGER_JWT_AUDIENCE"),
    plain("WHARFINGER_JWT_TENANT_CLAIM"),
    plain("WHARFINGER_JWT_USER_CLAIM"),
    plain("WHARFINGER_JWT_ROLE_CLAIM"),
    plain("WHARFINGER_JWT_ROLE_MAP"),
    plain("WHARFINGER_DEFAULT_TENANT"),
    secret("WHARFINGER_HOOK_SECRET"),
    plain("HOOK_SNS_ENDPOINT"),
    plain("HOOK_PUBSUB_AUDIENCE"),
    plain("HOOK_PUBSUB_SERVICE_ACCOUNT"),
    plain("HOOK_PUBSUB_KEYS_URL"),
    plain("DEFAULT_TENANT_QUOTA_BYTES"),
    plain("MAX_FILE_SIZE_BYTES"),
    plain("UPLOAD_ALLOWED_TYPES"),
    plain("TENANT_REQUESTS_PER_SECOND"),
    plain("TENANT_MAX_FILES"),
    plain("MIN_CHARGE_BYTES"),
    plain("UNCONFIRMED_LIMIT_PERCENT"),
    duration("UPLOAD_WINDOW_MS", MS),
    duration("UPLOAD_GRACE_MS", MS),
    plain("UPLOAD_MIN_RATE_BYTES"),
    plain("MULTIPART_THRESHOLD_BYTES"),
    plain("UPLOAD_WINDOW_POLICY"),
    cron("UPLOAD_WINDOW_SCHEDULE"),
    duration("IDEMPOTENCY_TTL_MS", MS),
    duration("BATCH_TIMEOUT_MS", MS),
    cron("BATCH_TIMEOUT_SCHEDULE"),
    duration("TOMBSTONE_RETENTION_DAYS", DAYS),
    plain("CLEANUP_MAX_ATTEMPTS"),
    cron("CLEANUP_SWEEP_SCHEDULE"),
    cron("ORPHAN_CLEANUP_SCHEDULE"),
    duration("ORPHAN_BLOB_GRACE_MS", MS),
    plain("ORPHAN_DELETE_LIMIT_PERCENT"),
    duration("DELETION_LOG_DAYS", DAYS),
    duration("AUDIT_LOG_DAYS", DAYS),
    duration("ABANDONED_UPLOAD_THRESHOLD_MS", MS),
    duration("FAILED_FILE_RETENTION_DAYS", DAYS),
    duration("FAILED_FILE_RETENTION_MS", MS),
    duration("FAILED_FILE_WARNING_DAYS", DAYS),
    duration("FAILED_FILE_WARNING_MS", MS),
    duration("QUARANTINE_RETENTION_DAYS", DAYS),
    cron("QUOTA_SYNC_SCHEDULE"),
    duration("DASHBOARD_CACHE_TTL", SECONDS),
    secret("OTEL_EXPORTER_OTLP_ENDPOINT"),
    list("PIPELINE_STAGES"),
    list("PIPELINE_BUILTIN_STAGES"),
    plain("PIPELINE_SCAN_FIRST"),
    plain("PIPELINE_CONCURRENCY"),
    duration("STUCK_FILE_THRESHOLD_MS", MS),
    plain("MAX_STUCK_RETRIES"),
    cron("STUCK_RECOVERY_SCHEDULE"),
    plain("CLAMD_URL"),
    plain("SCAN_HASHES_FILE"),
    plain("DERIVED_MAX_FACTOR"),
    plain("DERIVED_MIN_BYTES"),
    plain("EXTRACT_UNSUPPORTED"),
    plain("EXTRACT_FILE_BYTES_MAX"),
    plain("EXTRACT_TEXT_BYTES_MAX"),
    plain("EXTRACT_INFLATED_BYTES_MAX"),
    plain("EXTRACT_MEMORY_BYTES_MAX"),
    plain("EXTRACT_PAGES_MAX"),
    duration("EXTRACT_TIMEOUT_MS", MS),
    plain("CHUNK_UNIT"),
    plain("CHUNK_SIZE"),
    plain("CHUNK_OVERLAP"),
    plain("EMBEDDINGS_URL"),
    plain("EMBEDDINGS_MODEL"),
    secret("EMBEDDINGS_API_KEY"),
    plain("JOB_MAX_ATTEMPTS"),
    duration("STAGE_TIMEOUT_MS", MS),
    duration("JOB_LEASE_MS", MS),
    secret("WEBHOOK_URL"),
    secret("WEBHOOK_SECRET"),
    plain("WEBHOOK_ALLOW_PRIVATE"),
    secret("SLACK_WEBHOOK_URL"),
    plain("INGEST_ACK"),
    plain("INGEST_BLOB_URL"),
    plain("INGEST_BATCH_EVENTS"),
    plain("INGEST_BATCH_BYTES"),
    duration("INGEST_BATCH_AGE_MS", MS),
    plain("INGEST_MAX_INFLATED_BYTES"),
    plain("INGEST_MEMORY_BYTES"),
    plain("DLQ_DIR"),
    duration("DLQ_MAX_AGE", None),
    plain("DLQ_MAX_SIZE_BYTES"),
    plain("AUDIT_TO_INGEST"),
];

/// Prefixes of the stores' own variables. They are passed to the stores and are not settings of Wharfinger.
const STORE_ENV: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "IDENTITY_ENDPOINT"];

/// Read by commands that are clients of a server, not by the server.
const CLIENT_ENV: [&str; 5] =
    ["WHARFINGER_URL", "WHARFINGER_TOKEN", "WHARFINGER_RECONCILE_DATABASE", "XDG_CACHE_HOME", "HOME"];

/// Settings from the command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    /// Names of settings with their values.
    pub overrides: Vec<(&'static str, String)>,
}

const DEFAULT_FILE: &str = include_str!("../../../../wharfinger.default.toml");
const FILE: &str = "wharfinger.toml";

#[derive(Clone, Default)]
pub struct Values {
    /// Each value with the layer that set it.
    settings: BTreeMap<&'static str, (String, String)>,
    /// Variables of the stores. Some are secrets.
    store: BTreeMap<String, String>,
}

impl Values {
    pub fn read(flags: &Flags) -> Result<Values, BadSetting> {
        let mut values = Values::default();
        values.add_file("the defaults", DEFAULT_FILE)?;
        match &flags.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| unreadable(&path.display().to_string(), &error))?;
                values.add_file(&path.display().to_string(), &text)?;
            }
            None => match std::fs::read_to_string(FILE) {
                Ok(text) => values.add_file(FILE, &text)?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(FILE, &error)),
            },
        }
        values.add_environment(std::env::vars_os())?;
        values.add_flags(&flags.overrides);
        Ok(values)
    }

    /// The defaults and these values, without files and environment.
    pub fn read_alone(overrides: &[(&'static str, String)]) -> Result<Values, BadSetting> {
        let mut values = Values::default();
        values.add_file("the defaults", DEFAULT_FILE)?;
        values.add_flags(overrides);
        Ok(values)
    }

    fn add_flags(&mut self, overrides: &[(&'static str, String)]) {
        for (name, value) in overrides {
            match SETTINGS.iter().any(|setting| setting.env == *name) {
                true => drop(self.settings.insert(name, (value.clone(), "a flag".into()))),
                false => drop(self.store.insert((*name).to_owned(), value.clone())),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests(pairs: &[(&str, &str)]) -> Values {
        let mut values = Values::default();
        values.add_file("the defaults", DEFAULT_FILE).expect("the default file is valid");
        let pairs = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        values.add_environment(pairs).expect("known names");
        values
    }

    fn add_file(&mut self, origin: &str, text: &str) -> Result<(), BadSetting> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = 1 + error.span().map_or(0, |span| text[..span.start].matches('\n').count());
            BadSetting::new(origin, format!("line {line}: {}", error.message()))
        })?;
        for (key, value) in table {
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key() == key) else {
                return Err(BadSetting::new(key, format!("there is no such setting (in {origin})")));
            };
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(flag) => flag.to_string(),
                _ => {
                    return Err(BadSetting::new(
                        key,
                        format!("must be a string, a whole number, true or false (in {origin})"),
                    ));
                }
            };
            self.settings.insert(setting.env, (text, origin.to_owned()));
        }
        Ok(())
    }

    /// An empty variable counts as unset: compose files and units pass missing values like this.
    fn add_environment(
        &mut self,
        variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    ) -> Result<(), BadSetting> {
        for (name, value) in variables {
            let Some(name) = name.to_str() else { continue };
            match SETTINGS.iter().find(|setting| setting.env == name) {
                Some(setting) => {
                    let value =
                        value.into_string().map_err(|_| BadSetting::new(name, "must be valid UTF-8"))?;
                    if !value.is_empty() || setting.takes_empty {
                        self.settings.insert(setting.env, (value, "the environment".into()));
                    }
                }
                None if STORE_ENV.iter().any(|start| name.starts_with(start)) => {
                    if let Some(value) = value.into_string().ok().filter(|value| !value.is_empty()) {
                        self.store.insert(name.to_owned(), value);
                    }
                }
                None if name.starts_with("WHARFINGER_")
                    && !name.starts_with("WHARFINGER_TEST_")
                    && !CLIENT_ENV.contains(&name) =>
                {
                    return Err(BadSetting::new(name, "there is no such setting (in the environment)"));
                }
                None => {}
            }
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<String> {
        self.settings.get(name).map(|(value, _)| value.clone())
    }

    /// A variable of a store.
    pub(super) fn of_store(&self, name: &str) -> Option<String> {
        self.store.get(name).cloned()
    }

    /// The value as it is in force, and the layer that set it: a duration in the unit of its setting where that is exact,
    /// a cron schedule without quotes.
    pub fn with_origin(&self, setting: &Setting) -> Option<(String, &str)> {
        let (value, origin) = self.settings.get(setting.env)?;
        let value = match setting.kind {
            Kind::Duration(unit) => match (parse_in(value, unit), unit) {
                (Some(ms), Some(unit)) if ms % unit.ms == 0 => (ms / unit.ms).to_string(),
                (Some(ms), _) => format_ms(ms),
                (None, _) => value.clone(),
            },
            Kind::Cron => unquoted(value).to_owned(),
            Kind::Other => value.clone(),
        };
        Some((value, origin))
    }

    pub(super) fn text(&self, name: &'static str) -> Result<String, BadSetting> {
        self.get(name).ok_or_else(|| BadSetting::new(name, "is not set"))
    }

    pub(super) fn integer(&self, name: &'static str, min: u64, max: u64) -> Result<u64, BadSetting> {
        let text = self.text(name)?;
        let number = text.parse::<u64>().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| {
            let example = default_of(name).filter(|value| value.parse::<u64>().is_ok()).map(for_example);
            let example = example.unwrap_or_default();
            BadSetting::new(
                name,
                format!("must be a whole number from {min} to {max}{example}, not `{text}`"),
            )
        })
    }

    /// In milliseconds. A number without a unit counts in the unit of the setting.
    pub(super) fn duration_ms(&self, name: &'static str, min: u64, max: u64) -> Result<u64, BadSetting> {
        let text = self.text(name)?;
        let unit =
            SETTINGS.iter().find(|setting| setting.env == name).and_then(|setting| match setting.kind {
                Kind::Duration(unit) => unit,
                Kind::Cron | Kind::Other => None,
            });
        let ms = parse_in(&text, unit).filter(|ms| (min..=max).contains(ms));
        ms.ok_or_else(|| {
            let default = default_of(name).and_then(|value| parse_in(&value, unit)).filter(|ms| *ms > 0);
            let example = default.unwrap_or(3_600_000);
            let number = unit.filter(|unit| example.is_multiple_of(unit.ms));
            let number = number.map(|unit| format!("{} ({}) or ", example / unit.ms, unit.name));
            BadSetting::new(
                name,
                format!(
                    "must be a duration from {} to {}, for example {}{}, not `{text}`",
                    format_ms(min),
                    format_ms(max),
                    number.unwrap_or_default(),
                    format_ms(example)
                ),
            )
        })
    }

    /// A cron schedule. Files of variables may have it in quotes, because of its spaces.
    pub(super) fn schedule(&self, name: &'static str) -> Result<String, BadSetting> {
        Ok(unquoted(&self.text(name)?).to_owned())
    }

    pub(super) fn size(&self, name: &'static str, min: u64, max: u64) -> Result<u64, BadSetting> {
        let text = self.text(name)?;
        let bytes = parse_size(&text).filter(|bytes| (min..=max).contains(bytes));
        bytes.ok_or_else(|| {
            let example = for_example(default_of(name).unwrap_or_else(|| "10GiB".into()));
            BadSetting::new(name, format!("must be a size from {min} to {max} bytes{example}, not `{text}`"))
        })
    }
}

fn unreadable(file: &str, error: &std::io::Error) -> BadSetting {
    BadSetting::new(file, format!("cannot read this settings file: {error}"))
}

/// A duration as Go writes it, or a number in this unit.
fn parse_in(text: &str, unit: Option<Unit>) -> Option<u64> {
    match (text.trim().parse::<u64>(), unit) {
        (Ok(number), Some(unit)) => number.checked_mul(unit.ms),
        _ => parse_go_ms(text),
    }
}

/// Without one pair of quotes around it.
fn unquoted(text: &str) -> &str {
    let text = text.trim();
    let inner = ['\'', '"'].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    inner.map_or(text, str::trim)
}

fn default_of(name: &str) -> Option<String> {
    let mut defaults = Values::default();
    defaults.add_file("the defaults", DEFAULT_FILE).ok()?;
    defaults.get(name)
}

fn for_example(value: String) -> String {
    format!(", for example {value}")
}

/// A variable of a command that is a client of a server.
pub fn client_env(name: &'static str) -> Option<String> {
    debug_assert!(CLIENT_ENV.contains(&name));
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// `RUST_LOG`: the log filter.
pub fn log_filter() -> Option<String> {
    std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty())
}

pub(super) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "wharfinger".into())
}
