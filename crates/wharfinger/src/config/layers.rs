//! The layers of settings, and where each value was set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::BadSetting;
use super::size::parse_size;

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub env: &'static str,
    pub secret: bool,
    /// An empty variable is a valid value, and does not count as unset.
    takes_empty: bool,
}

impl Setting {
    /// Its key in a settings file.
    pub fn key(&self) -> String {
        self.env.trim_start_matches("WHARFINGER_").to_ascii_lowercase()
    }
}

const fn plain(env: &'static str) -> Setting {
    Setting { env, secret: false, takes_empty: false }
}

const fn list(env: &'static str) -> Setting {
    Setting { env, secret: false, takes_empty: true }
}

const fn secret(env: &'static str) -> Setting {
    Setting { env, secret: true, takes_empty: false }
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
    plain("SHUTDOWN_DRAIN_MS"),
    plain("WHARFINGER_DATA_DIR"),
    secret("WHARFINGER_DATABASE_URL"),
    plain("WHARFINGER_DATABASE_SCHEMA"),
    plain("WHARFINGER_BLOB_URL"),
    plain("WHARFINGER_BLOB_PUBLIC_ENDPOINT"),
    secret("WHARFINGER_QUOTA_URL"),
    plain("QUOTA_WITHOUT_REDIS"),
    plain("QUOTA_REDIS_TIMEOUT_MS"),
    secret("WHARFINGER_BROKER_URL"),
    plain("AMQP_DELAYED_EXCHANGE"),
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
    plain("UPLOAD_WINDOW_MS"),
    plain("UPLOAD_GRACE_MS"),
    plain("UPLOAD_MIN_RATE_BYTES"),
    plain("MULTIPART_THRESHOLD_BYTES"),
    plain("UPLOAD_WINDOW_POLICY"),
    plain("UPLOAD_WINDOW_SCHEDULE"),
    plain("IDEMPOTENCY_TTL_MS"),
    plain("BATCH_TIMEOUT_MS"),
    plain("BATCH_TIMEOUT_SCHEDULE"),
    plain("TOMBSTONE_RETENTION_DAYS"),
    plain("CLEANUP_MAX_ATTEMPTS"),
    plain("CLEANUP_SWEEP_SCHEDULE"),
    plain("ORPHAN_CLEANUP_SCHEDULE"),
    plain("ORPHAN_BLOB_GRACE_MS"),
    plain("ORPHAN_DELETE_LIMIT_PERCENT"),
    plain("DELETION_LOG_DAYS"),
    plain("AUDIT_LOG_DAYS"),
    plain("ABANDONED_UPLOAD_THRESHOLD_MS"),
    plain("FAILED_FILE_RETENTION_DAYS"),
    plain("FAILED_FILE_RETENTION_MS"),
    plain("FAILED_FILE_WARNING_DAYS"),
    plain("FAILED_FILE_WARNING_MS"),
    plain("QUOTA_SYNC_SCHEDULE"),
    plain("DASHBOARD_CACHE_TTL"),
    secret("OTEL_EXPORTER_OTLP_ENDPOINT"),
    list("PIPELINE_STAGES"),
    list("PIPELINE_BUILTIN_STAGES"),
    plain("PIPELINE_SCAN_FIRST"),
    plain("PIPELINE_CONCURRENCY"),
    plain("STUCK_FILE_THRESHOLD_MS"),
    plain("MAX_STUCK_RETRIES"),
    plain("STUCK_RECOVERY_SCHEDULE"),
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
    plain("EXTRACT_TIMEOUT_MS"),
    plain("CHUNK_UNIT"),
    plain("CHUNK_SIZE"),
    plain("CHUNK_OVERLAP"),
    plain("EMBEDDINGS_URL"),
    plain("EMBEDDINGS_MODEL"),
    secret("EMBEDDINGS_API_KEY"),
    plain("JOB_MAX_ATTEMPTS"),
    plain("STAGE_TIMEOUT_MS"),
    plain("JOB_LEASE_MS"),
    secret("WEBHOOK_URL"),
    secret("WEBHOOK_SECRET"),
    plain("WEBHOOK_ALLOW_PRIVATE"),
    secret("SLACK_WEBHOOK_URL"),
    plain("INGEST_ACK"),
    plain("INGEST_BLOB_URL"),
    plain("INGEST_BATCH_EVENTS"),
    plain("INGEST_BATCH_BYTES"),
    plain("INGEST_BATCH_AGE_MS"),
    plain("INGEST_MAX_INFLATED_BYTES"),
    plain("INGEST_MEMORY_BYTES"),
    plain("DLQ_DIR"),
    plain("DLQ_MAX_AGE"),
    plain("DLQ_MAX_SIZE_BYTES"),
    plain("AUDIT_TO_INGEST"),
];

/// Prefixes of the stores' own variables. They are passed to the stores and are not settings of Wharfinger.
const STORE_ENV: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "IDENTITY_ENDPOINT"];

/// Read by commands that are clients of a server, not by the server.
const CLIENT_ENV: [&str; 5] =
    ["WHARFINGER_SERVER", "WHARFINGER_TOKEN", "WHARFINGER_RECONCILE_DATABASE", "XDG_CACHE_HOME", "HOME"];

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

    /// The value and the layer that set it.
    pub fn with_origin(&self, name: &str) -> Option<(&str, &str)> {
        self.settings.get(name).map(|(value, origin)| (value.as_str(), origin.as_str()))
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
