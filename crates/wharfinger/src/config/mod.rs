//! Settings: defaults < `wharfinger.toml` < environment < flags. No other module reads the environment (test
//! `only_one_module_reads_the_environment_and_one_the_clock`); libraries may read variables of theirs.

mod address;
mod blob_url;
mod duration;
mod hooks;
mod ingest;
mod layers;
mod masking;
mod notify;
mod pipeline;
mod secrets;
mod size;
mod sweeps;
#[cfg(test)]
mod tests;
mod tokens;

use std::path::PathBuf;

use wharfinger_catalog::{CatalogUrl, OutboxTargets};
use wharfinger_lifecycle::limits::{FILE_SIZE_BYTES_MAX, QUOTA_BYTES_MAX};
use wharfinger_lifecycle::media_type::TypeList;
use wharfinger_lifecycle::tenant_policy::REQUESTS_PER_SECOND_MAX;
use wharfinger_stores::StoreConfig;

pub use address::AddressRange;
pub use blob_url::{ForeignBucket, foreign_bucket};
pub use duration::parse_duration_ms;
pub use hooks::{HookSettings, PubSubSettings};
pub use ingest::{Ack, IngestSettings};
pub use layers::{Flags, SETTINGS, Setting, Values, client_env, log_filter};
pub use masking::{HIDDEN, mask_path, mask_url};
pub use notify::{NotifySettings, WebhookSettings};
pub use pipeline::{ExtractSettings, PipelineSettings};
pub use secrets::{Secrets, prepare as prepare_secrets};
pub use size::{format_size, parse_size};
pub use sweeps::SweepSettings;
pub use tokens::TokenClaims;

/// An invalid setting. It stops the start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct BadSetting {
    pub name: String,
    pub problem: String,
}

impl BadSetting {
    fn new(name: impl Into<String>, problem: impl Into<String>) -> BadSetting {
        BadSetting { name: name.into(), problem: problem.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPolicy {
    Reclaim,
    Rescue,
}

/// Which requests have a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Only those that failed by a fault of the server (5xx).
    None,
    /// Those that failed.
    Failed,
    All,
}

/// Who may read the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAccess {
    /// Every client that connects directly, without a proxy.
    Open,
    /// Only operators.
    Token,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: String,
    pub public_url: Option<String>,
    pub cors_origins: Vec<String>,
    pub instance_id: String,
    pub shutdown_drain_ms: u64,
    pub data_dir: PathBuf,
    pub database: CatalogUrl,
    pub database_schema: String,
    pub blobs: StoreConfig,
    pub multipart_threshold_bytes: u64,
    /// Redis that admits uploads. None: the database admits them.
    pub quota_redis: Option<String>,
    /// While Redis does not answer, all uploads are refused.
    pub quota_fails_closed: bool,
    pub quota_redis_timeout_ms: u64,
    /// RabbitMQ that delivers delayed checks. None: the database is polled.
    pub broker_rabbit: Option<String>,
    pub amqp_delayed_exchange: bool,
    /// The names of all our exchanges and queues start with it.
    pub amqp_prefix: String,
    /// All our keys in Redis start with it.
    pub redis_prefix: String,
    pub jwt_secret: Option<String>,
    pub access_log: AccessLog,
    pub metrics: MetricsAccess,
    pub metrics_listen: Option<String>,
    /// 0: no limit.
    pub connections_per_address: usize,
    pub trusted_proxies: Vec<AddressRange>,
    pub jwks_file: Option<PathBuf>,
    pub jwks_url: Option<String>,
    pub jwt_issuer: Option<String>,
    pub jwt_audience: Option<String>,
    pub token_claims: TokenClaims,
    pub default_quota_bytes: u64,
    pub tenant_files_max: u64,
    /// The minimum charge of a file.
    pub charge_bytes_min: u64,
    pub file_size_bytes_max: u64,
    /// None: all types.
    pub upload_allowed_types: Option<TypeList>,
    /// 0: no limit.
    pub tenant_requests_per_second: u32,
    pub unconfirmed_limit_percent: u8,
    pub upload_window_ms: i64,
    pub upload_grace_ms: i64,
    pub upload_min_rate_bytes: u64,
    pub window_policy: WindowPolicy,
    pub idempotency_ttl_ms: i64,
    /// The collector of traces.
    pub otlp_endpoint: Option<String>,
    /// How long the dashboard's answers are cached. 0: not at all.
    pub dashboard_cache_ms: i64,
    pub batch_timeout_ms: i64,
    pub tombstone_ms: i64,
    pub cleanup_max_attempts: u32,
    pub sweeps: SweepSettings,
    pub pipeline: PipelineSettings,
    pub job_max_attempts: u32,
    pub stage_timeout_ms: i64,
    pub job_lease_ms: i64,
    pub notify: NotifySettings,
    pub hooks: HookSettings,
    pub ingest: IngestSettings,
}

/// The limit for windows, leases and retentions: ten years, far from any overflow.
const DURATION_MS_MAX: u64 = 10 * 366 * DAY_MS;
const DAY_MS: u64 = 86_400_000;

impl Settings {
    /// Reads every layer and checks every value.
    pub fn load(flags: &Flags) -> Result<Settings, BadSetting> {
        Settings::from_values(&Values::read(flags)?)
    }

    pub fn from_values(values: &Values) -> Result<Settings, BadSetting> {
        let data_dir = PathBuf::from(values.text("WHARFINGER_DATA_DIR")?);
        let settings = Settings {
            listen: values.text("WHARFINGER_LISTEN")?,
            public_url: values.get("WHARFINGER_PUBLIC_URL").map(public_url).transpose()?,
            cors_origins: values
                .get("WHARFINGER_CORS_ORIGINS")
                .map_or_else(|| Ok(Vec::new()), |list| cors_origins(&list))?,
            instance_id: values.get("INSTANCE_ID").unwrap_or_else(layers::host_name),
            shutdown_drain_ms: values.duration_ms("SHUTDOWN_DRAIN_MS", 0, 3_600_000)?,
            database: database_url(&values.text("WHARFINGER_DATABASE_URL")?, &data_dir)?,
            database_schema: database_schema(values.text("WHARFINGER_DATABASE_SCHEMA")?)?,
            blobs: blob_url::blob_place(values, &data_dir)?,
            multipart_threshold_bytes: values.size("MULTIPART_THRESHOLD_BYTES", 1, FILE_SIZE_BYTES_MAX)?,
            quota_redis: engine_url("WHARFINGER_QUOTA_URL", values, &["redis://", "rediss://"])?,
            quota_fails_closed: match values.text("QUOTA_WITHOUT_REDIS")?.as_str() {
                "database" => false,
                "refuse" => true,
                other => {
                    let problem = format!("must be `database` or `refuse`, not `{other}`");
                    return Err(BadSetting::new("QUOTA_WITHOUT_REDIS", problem));
                }
            },
            quota_redis_timeout_ms: values.duration_ms("QUOTA_REDIS_TIMEOUT_MS", 1, 30_000)?,
            broker_rabbit: engine_url("WHARFINGER_BROKER_URL", values, &["amqp://", "amqps://"])?,
            amqp_delayed_exchange: boolean("AMQP_DELAYED_EXCHANGE", values)?,
            amqp_prefix: amqp_prefix(values.text("AMQP_PREFIX")?)?,
            redis_prefix: redis_prefix(values.get("REDIS_PREFIX").unwrap_or_default())?,
            access_log: access_log(&values.text("ACCESS_LOG")?)?,
            metrics: metrics_access(values)?,
            metrics_listen: values.get("WHARFINGER_METRICS_LISTEN"),
            connections_per_address: values.integer("WHARFINGER_CONNECTIONS_PER_ADDRESS", 0, 1_000_000)?
                as usize,
            trusted_proxies: trusted_proxies(values)?,
            jwt_secret: values.get("WHARFINGER_JWT_SECRET").map(jwt_secret).transpose()?,
            jwks_file: values.get("WHARFINGER_JWKS_FILE").map(PathBuf::from),
            jwks_url: jwks_url(values)?,
            jwt_issuer: values.get("WHARFINGER_JWT_ISSUER"),
            jwt_audience: values.get("WHARFINGER_JWT_AUDIENCE"),
            token_claims: TokenClaims::from_values(values)?,
            default_quota_bytes: values.size("DEFAULT_TENANT_QUOTA_BYTES", 0, QUOTA_BYTES_MAX)?,
            tenant_files_max: values.integer("TENANT_MAX_FILES", 0, 1 << 50)?,
            charge_bytes_min: values.size("MIN_CHARGE_BYTES", 0, FILE_SIZE_BYTES_MAX)?,
            file_size_bytes_max: values.size("MAX_FILE_SIZE_BYTES", 1, FILE_SIZE_BYTES_MAX)?,
            upload_allowed_types: values
                .get("UPLOAD_ALLOWED_TYPES")
                .map(|list| TypeList::parse(&list))
                .transpose()
                .map_err(|bad| BadSetting::new("UPLOAD_ALLOWED_TYPES", bad.to_string()))?,
            tenant_requests_per_second: values.integer(
                "TENANT_REQUESTS_PER_SECOND",
                0,
                REQUESTS_PER_SECOND_MAX.into(),
            )? as u32,
            unconfirmed_limit_percent: values.integer("UNCONFIRMED_LIMIT_PERCENT", 1, 100)? as u8,
            upload_window_ms: values.duration_ms("UPLOAD_WINDOW_MS", 1, 7 * 86_400_000)? as i64,
            upload_grace_ms: values.duration_ms("UPLOAD_GRACE_MS", 0, DURATION_MS_MAX)? as i64,
            upload_min_rate_bytes: values.size("UPLOAD_MIN_RATE_BYTES", 1, u64::MAX)?,
            window_policy: window_policy(&values.text("UPLOAD_WINDOW_POLICY")?)?,
            otlp_endpoint: otlp_endpoint(values)?,
            dashboard_cache_ms: values.duration_ms("DASHBOARD_CACHE_TTL", 0, DAY_MS)? as i64,
            idempotency_ttl_ms: values.duration_ms("IDEMPOTENCY_TTL_MS", 1, DURATION_MS_MAX)? as i64,
            batch_timeout_ms: values.duration_ms("BATCH_TIMEOUT_MS", 1, DURATION_MS_MAX)? as i64,
            tombstone_ms: values.duration_ms("TOMBSTONE_RETENTION_DAYS", DAY_MS, 3_650 * DAY_MS)? as i64,
            cleanup_max_attempts: values.integer("CLEANUP_MAX_ATTEMPTS", 1, 1_000)? as u32,
            sweeps: SweepSettings::from_values(values)?,
            pipeline: PipelineSettings::from_values(values)?,
            job_max_attempts: values.integer("JOB_MAX_ATTEMPTS", 1, 1_000)? as u32,
            stage_timeout_ms: values.duration_ms("STAGE_TIMEOUT_MS", 1, DURATION_MS_MAX)? as i64,
            job_lease_ms: values.duration_ms("JOB_LEASE_MS", 100, DURATION_MS_MAX)? as i64,
            notify: NotifySettings::from_values(values)?,
            hooks: HookSettings::from_values(values)?,
            ingest: IngestSettings::from_values(values, &data_dir)?,
            data_dir,
        };
        if settings.listen.parse::<std::net::SocketAddr>().is_err() && !settings.listen.contains(':') {
            return Err(BadSetting::new(
                "WHARFINGER_LISTEN",
                "must be an address with a port, for example 127.0.0.1:8080",
            ));
        }
        Ok(settings)
    }

    /// The external systems that get notifications and events.
    pub fn outbox_targets(&self) -> OutboxTargets {
        OutboxTargets {
            webhook: self.notify.webhook.is_some(),
            slack: self.notify.slack.is_some(),
            archive: self.ingest.archive,
        }
    }

    /// Only with the embedded database, the program creates secrets in the data dir.
    pub fn is_embedded(&self) -> bool {
        matches!(self.database, CatalogUrl::Sqlite(_))
    }
}

/// None for `database:`. Messages never show the URL, because it may contain a password.
fn engine_url(name: &'static str, values: &Values, schemes: &[&str]) -> Result<Option<String>, BadSetting> {
    let url = values.text(name)?;
    if url == "database:" {
        return Ok(None);
    }
    match schemes.iter().any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty())) {
        true => Ok(Some(url)),
        false => {
            let example = format!("{}localhost", schemes[0]);
            let schemes = schemes.join(" or ");
            Err(BadSetting::new(
                name,
                format!("must be `database:` or start with {schemes}, for example {example}"),
            ))
        }
    }
}

fn amqp_prefix(prefix: String) -> Result<String, BadSetting> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    // Names have at most 255 bytes, and those with `amq.` belong to the broker.
    match (1..=100).contains(&prefix.len()) && prefix.chars().all(is_plain) && !prefix.starts_with("amq.") {
        true => Ok(prefix),
        false => Err(BadSetting::new(
            "AMQP_PREFIX",
            format!(
                "must have 1 to 100 letters, digits, dots, hyphens or underscores, and not start with `amq.`, for \
                 example wharfinger-test, not `{prefix}`"
            ),
        )),
    }
}

/// Without braces: they would begin another hash tag, and a cluster would put all tenants into one slot.
fn redis_prefix(prefix: String) -> Result<String, BadSetting> {
    let is_plain = |c: char| c.is_ascii_graphic() && !"{}*?[]\\".contains(c);
    match prefix.len() <= 100 && prefix.chars().all(is_plain) {
        true => Ok(prefix),
        false => Err(BadSetting::new(
            "REDIS_PREFIX",
            format!(
                "must have at most 100 visible ASCII characters without {{ }} * ? [ ] \\, for example shop:, not \
                 `{prefix}`"
            ),
        )),
    }
}

fn boolean(name: &'static str, values: &Values) -> Result<bool, BadSetting> {
    match values.text(name)?.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(BadSetting::new(name, format!("must be `true` or `false`, not `{other}`"))),
    }
}

fn public_url(url: String) -> Result<String, BadSetting> {
    if url.starts_with("http://") || url.starts_with("https://") {
        Ok(url.trim_end_matches('/').to_owned())
    } else {
        Err(BadSetting::new(
            "WHARFINGER_PUBLIC_URL",
            "must start with http:// or https://, for example https://files.example.com",
        ))
    }
}

/// An origin must have the form that browsers send: scheme, host and an optional port.
fn cors_origins(list: &str) -> Result<Vec<String>, BadSetting> {
    let is_origin = |origin: &str| {
        origin.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty()
                && !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*".contains(&byte))
        })
    };
    let origins = list.split(',').map(str::trim).filter(|origin| !origin.is_empty());
    origins
        .map(|origin| match is_origin(origin) {
            true => Ok(origin.to_owned()),
            false => Err(BadSetting::new(
                "WHARFINGER_CORS_ORIGINS",
                format!("`{origin}` is not an origin like https://app.example.com"),
            )),
        })
        .collect()
}

fn access_log(word: &str) -> Result<AccessLog, BadSetting> {
    match word {
        "none" => Ok(AccessLog::None),
        "failed" => Ok(AccessLog::Failed),
        "all" => Ok(AccessLog::All),
        other => {
            Err(BadSetting::new("ACCESS_LOG", format!("must be `none`, `failed` or `all`, not `{other}`")))
        }
    }
}

/// Open by default only on a loopback address without a separate metrics address.
fn metrics_access(values: &Values) -> Result<MetricsAccess, BadSetting> {
    match values.get("WHARFINGER_METRICS").as_deref() {
        Some("open") => Ok(MetricsAccess::Open),
        Some("token") => Ok(MetricsAccess::Token),
        Some(other) => {
            let problem = format!("must be `open` or `token`, not `{other}`");
            Err(BadSetting::new("WHARFINGER_METRICS", problem))
        }
        None => {
            let listen = values.text("WHARFINGER_LISTEN")?;
            let host = listen.rsplit_once(':').map_or("", |(host, _)| host);
            let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
            let is_local = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
            let is_separate = values.get("WHARFINGER_METRICS_LISTEN").is_some();
            Ok(if is_local && !is_separate { MetricsAccess::Open } else { MetricsAccess::Token })
        }
    }
}

fn trusted_proxies(values: &Values) -> Result<Vec<AddressRange>, BadSetting> {
    let list = values.get("WHARFINGER_TRUSTED_PROXIES").unwrap_or_default();
    let ranges = list.split(',').map(str::trim).filter(|range| !range.is_empty()).map(|range| {
        AddressRange::parse(range).ok_or_else(|| {
            let problem = format!("`{range}` is not an address like 10.0.0.7 or a range like 10.0.0.0/8");
            BadSetting::new("WHARFINGER_TRUSTED_PROXIES", problem)
        })
    });
    ranges.collect()
}

fn jwks_url(values: &Values) -> Result<Option<String>, BadSetting> {
    let url = values.get("WHARFINGER_JWKS_URL");
    let bad = |problem: &str| Err(BadSetting::new("WHARFINGER_JWKS_URL", problem));
    match &url {
        Some(_) if values.get("WHARFINGER_JWKS_FILE").is_some() => {
            bad("must not be set together with WHARFINGER_JWKS_FILE. Remove one of them")
        }
        Some(url) if !url.starts_with("https://") && !url.starts_with("http://") => bad(
            "must start with https:// (or http:// in a trusted network), for example https://id.example.com/keys",
        ),
        _ => Ok(url),
    }
}

fn jwt_secret(secret: String) -> Result<String, BadSetting> {
    if secret.len() < 32 {
        return Err(BadSetting::new(
            "WHARFINGER_JWT_SECRET",
            "must be at least 32 bytes long, for example from `openssl rand -hex 32`",
        ));
    }
    Ok(secret)
}

fn database_url(url: &str, data_dir: &std::path::Path) -> Result<CatalogUrl, BadSetting> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(CatalogUrl::Postgres(url.to_owned()));
    }
    match url.strip_prefix("sqlite:") {
        Some("") => Ok(CatalogUrl::Sqlite(data_dir.join("wharfinger.db"))),
        Some(path) => Ok(CatalogUrl::Sqlite(PathBuf::from(path.strip_prefix("//").unwrap_or(path)))),
        None => Err(BadSetting::new(
            "WHARFINGER_DATABASE_URL",
            "must be `sqlite:`, `sqlite:/path/to/file.db` or `postgres://user:password@host/database`",
        )),
    }
}

/// Only names that need no quotes in SQL.
fn database_schema(name: String) -> Result<String, BadSetting> {
    let is_plain =
        |(n, c): (usize, char)| c.is_ascii_lowercase() || c == '_' || (n > 0 && c.is_ascii_digit());
    let is_valid = !name.is_empty() && name.len() <= 63 && name.chars().enumerate().all(is_plain);
    match is_valid && !name.starts_with("pg_") && name != "information_schema" {
        true => Ok(name),
        false => Err(BadSetting::new(
            "WHARFINGER_DATABASE_SCHEMA",
            "must have 1 to 63 lower-case letters, digits or underscores, and not start with a digit or `pg_`, for example wharfinger",
        )),
    }
}

fn window_policy(word: &str) -> Result<WindowPolicy, BadSetting> {
    match word {
        "reclaim" => Ok(WindowPolicy::Reclaim),
        "rescue" => Ok(WindowPolicy::Rescue),
        other => Err(BadSetting::new(
            "UPLOAD_WINDOW_POLICY",
            format!("must be `reclaim` or `rescue`, not `{other}`"),
        )),
    }
}

fn otlp_endpoint(values: &Values) -> Result<Option<String>, BadSetting> {
    const NAME: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let Some(url) = values.get(NAME) else { return Ok(None) };
    let parsed = url.parse::<reqwest::Url>().ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    match parsed {
        Some(parsed) if parsed.username().is_empty() && parsed.password().is_none() => Ok(Some(url)),
        Some(_) => {
            Err(BadSetting::new(NAME, "must not contain a password. Put it into OTEL_EXPORTER_OTLP_HEADERS"))
        }
        None => Err(BadSetting::new(
            NAME,
            "must be an http:// or https:// URL, for example http://localhost:4318",
        )),
    }
}
