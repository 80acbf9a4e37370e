//! A complete server in the test process: real HTTP on a free port, a real catalog, and a clock that the test controls.

mod answer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use wharfinger::app::App;
use wharfinger::clock::Clock;
use wharfinger::config::{Flags, Settings, Values, prepare_secrets};
use wharfinger::core::{Caller, Role};
use wharfinger::http::ConnectionLimits;
use wharfinger::roles::Roles;
use wharfinger::sweeps::{SweepLease, orphan_blobs};
use wharfinger::{http, worker};
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogOptions, OutboxTargets};
use wharfinger_lifecycle::id::{TenantId, UserId};
use wharfinger_stores::BlobStore;

pub use answer::Answer;

/// The start of the test's clock. It is in the past, so that no test depends on the machine's clock.
pub const START: i64 = 1_750_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
    /// PostgreSQL with the `vector` extension, for tests of search.
    Pgvector,
}

/// Repeats a call that is answered with 503. Of hundreds of concurrent calls some may time out waiting for a database
/// connection on a slow machine. A 503 without that wait fails the test.
pub async fn patiently<F: Future<Output = Answer>>(ask: impl Fn() -> F) -> Answer {
    let started = Instant::now();
    loop {
        let sent = Instant::now();
        let answer = ask().await;
        if answer.status != 503 {
            return answer;
        }
        let problem = answer.expect_problem(503, "unavailable");
        assert!(sent.elapsed() > Duration::from_secs(4), "refused without waiting: {problem}");
        assert!(started.elapsed() < Duration::from_secs(300), "refused for 5 minutes: {problem}");
    }
}

/// Runs each of these functions as a test on SQLite and on PostgreSQL.
macro_rules! on_each_database {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            use crate::test_app::Database;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(Database::Sqlite).await;
            })*
        }
        mod postgres {
            use crate::test_app::Database;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(Database::Postgres).await;
            })*
        }
    };
}
pub(crate) use on_each_database;

/// All tests of the process share the metrics, and each scrape updates them. A test that compares them holds this lock.
pub static METRICS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The durable state of servers: folders and a database. A test starts and crashes servers on it.
pub struct TestEnv {
    folder: TempDir,
    settings: Vec<(&'static str, String)>,
    pub clock: Clock,
}

pub struct UnmountedDisk {
    from: PathBuf,
    to: PathBuf,
}

impl UnmountedDisk {
    pub fn remount(self) {
        std::fs::remove_dir_all(&self.from).expect("the mount point");
        std::fs::rename(&self.to, &self.from).expect("the disk is mounted");
    }
}

pub struct TestApp {
    pub app: Arc<App>,
    pub url: String,
    stop: CancellationToken,
    pub http: reqwest::Client,
}

/// Runs a query on a separate connection to the database of the environment.
macro_rules! query_directly {
    ($env:expr, $query:expr, $run:ident) => {
        match $env.settings.iter().find(|(name, _)| *name == "WHARFINGER_DATABASE_URL") {
            Some((_, url)) => {
                let mut connection = sqlx::PgConnection::connect(url).await.expect("a connection");
                $query.$run(&mut connection).await.expect("an answer")
            }
            None => {
                let file = SqliteConnectOptions::new().filename($env.data_dir().join("wharfinger.db"));
                let mut connection = file.connect().await.expect("a connection");
                $query.$run(&mut connection).await.expect("an answer")
            }
        }
    };
}

impl TestEnv {
    pub fn new(database: Database) -> TestEnv {
        TestEnv::with(database, &[])
    }

    /// For tests with separate server processes, which use the machine's clock.
    pub fn in_real_time(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
        TestEnv { clock: Clock::system(), ..TestEnv::with(database, settings) }
    }

    /// The settings as environment variables.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.settings.iter().map(|(name, value)| (*name, value.as_str()))
    }

    pub fn with(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut all = vec![("WHARFINGER_DATA_DIR", folder.path().join("data").display().to_string())];
        // Most tests are about uploads. Without stages, a confirmed file is ready at once.
        all.push(("PIPELINE_STAGES", String::new()));
        let url = match database {
            Database::Sqlite => None,
            Database::Postgres => Some(harness::postgres::shared().create_database()),
            Database::Pgvector => {
                let server = harness::postgres::shared_with_pgvector();
                let url = server.create_database();
                server.psql(&url, "CREATE EXTENSION vector").expect("pgvector");
                Some(url)
            }
        };
        if let Some(url) = url {
            all.push(("WHARFINGER_DATABASE_URL", url));
            all.push(("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more".into()));
        }
        all.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
        TestEnv { folder, settings: all, clock: Clock::manual(START) }
    }

    /// With these pipeline stages.
    pub fn with_stages(database: Database, stages: &str, settings: &[(&'static str, &str)]) -> TestEnv {
        let mut all = vec![("PIPELINE_STAGES", stages)];
        all.extend(settings);
        TestEnv::with(database, &all)
    }

    /// With a new bucket of a Ceph gateway as the store.
    pub fn on_s3(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
        let server = harness::radosgw::shared();
        let bucket = server.create_bucket();
        TestEnv::in_bucket(database, &bucket, &server.endpoint(), settings)
    }

    /// With quotas in Redis.
    pub fn with_redis(database: Database, redis: &str, settings: &[(&'static str, &str)]) -> TestEnv {
        // A slow machine must not cause timeouts.
        let mut all = vec![("WHARFINGER_QUOTA_URL", redis), ("QUOTA_REDIS_TIMEOUT_MS", "30000")];
        all.extend(settings);
        TestEnv::with(database, &all)
    }

    /// The same environment with other settings.
    pub fn also(mut self, settings: &[(&'static str, &str)]) -> TestEnv {
        self.settings.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
        self
    }

    /// The same environment without one setting.
    pub fn without(&self, setting: &str) -> TestEnv {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = self.settings.iter().filter(|(name, _)| *name != setting).cloned().collect();
        TestEnv { folder, settings, clock: self.clock.clone() }
    }

    /// With a new container of Azurite as the store.
    pub fn on_azure(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
        let server = harness::azurite::shared();
        let (url, endpoint) = (format!("az://{}/wharf", server.create_container()), server.endpoint());
        let mut all = vec![
            ("WHARFINGER_BLOB_URL", url.as_str()),
            ("AZURE_STORAGE_ENDPOINT", endpoint.as_str()),
            ("AZURE_STORAGE_ACCOUNT_NAME", server.account()),
            ("AZURE_STORAGE_ACCOUNT_KEY", server.key()),
        ];
        all.extend(settings);
        TestEnv::with(database, &all)
    }

    /// With an existing bucket, at the address of the gateway or of a proxy.
    pub fn in_bucket(
        database: Database,
        bucket: &str,
        endpoint: &str,
        settings: &[(&'static str, &str)],
    ) -> TestEnv {
        let server = harness::radosgw::shared();
        let url = format!("s3://{bucket}/wharf");
        let mut all = vec![
            ("WHARFINGER_BLOB_URL", url.as_str()),
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", server.access_key()),
            ("AWS_SECRET_ACCESS_KEY", server.secret_key()),
            ("AWS_REGION", server.region()),
        ];
        all.extend(settings);
        TestEnv::with(database, &all)
    }

    pub fn is_local(&self) -> bool {
        !self.settings.iter().any(|(name, _)| *name == "WHARFINGER_BLOB_URL")
    }

    /// SQLite and the local store, which only one process may use.
    pub fn is_embedded(&self) -> bool {
        self.is_local() && !self.settings.iter().any(|(name, _)| *name == "WHARFINGER_DATABASE_URL")
    }

    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn blob_dir(&self) -> PathBuf {
        self.data_dir().join("blobs")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Reads a number from a PostgreSQL that may be down.
    pub async fn try_scalar(&self, sql: &'static str) -> Option<i64> {
        let (_, url) = self.settings.iter().find(|(name, _)| *name == "WHARFINGER_DATABASE_URL")?;
        let mut connection = sqlx::PgConnection::connect(url).await.ok()?;
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.ok()
    }

    /// Reads a number directly from the database.
    pub async fn scalar(&self, sql: &str) -> i64 {
        query_directly!(self, sqlx::query_scalar(AssertSqlSafe(sql.to_owned())), fetch_one)
    }

    fn loaded_settings(&self) -> Settings {
        let overrides = self.environment().map(|(name, value)| (name, value.to_owned())).collect();
        let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
        Settings::from_values(&values).expect("possible settings")
    }

    /// Opens the catalog without a server.
    pub async fn open_catalog(&self) -> Catalog {
        let settings = self.loaded_settings();
        std::fs::create_dir_all(&settings.data_dir).expect("a folder");
        let options = CatalogOptions {
            url: settings.database,
            schema: settings.database_schema,
            faults: Faults::none(),
            storage_type: "disk",
            cleanup_max_attempts: 5,
            job_max_attempts: 5,
            connections_max: 4,
            with_redis_quota: false,
            targets: OutboxTargets::default(),
        };
        let catalog = Catalog::open(options).await.expect("a catalog");
        catalog.migrate(self.clock.now()).await.expect("its schema");
        catalog
    }

    /// Opens the remote store without a server.
    pub async fn blobs(&self) -> Arc<dyn BlobStore> {
        self.loaded_settings().blobs.connect().await.expect("connected").expect("a remote store")
    }

    /// Reads texts directly from the database.
    pub async fn texts(&self, sql: &'static str) -> Vec<String> {
        query_directly!(self, sqlx::query_scalar(sql), fetch_all)
    }

    /// Replaces the local store by an empty folder, like an unmounted disk.
    pub fn unmount_disk(&self) -> UnmountedDisk {
        let disk = UnmountedDisk { from: self.blob_dir(), to: self.folder.path().join("unmounted") };
        std::fs::rename(&disk.from, &disk.to).expect("the disk is unmounted");
        std::fs::create_dir(&disk.from).expect("an empty mount point");
        disk
    }

    /// Runs a statement directly on the database.
    pub async fn execute(&self, sql: &'static str) {
        query_directly!(self, sqlx::query_scalar::<_, i64>(sql), fetch_all);
    }

    pub fn advance(&self, ms: i64) {
        self.clock.advance(Duration::from_millis(u64::try_from(ms).expect("not negative")));
    }

    /// Makes the temporary files of crashed uploads an hour old. The test's clock does not change file times.
    pub fn age_incoming_uploads(&self) {
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3_600);
        let mut folders = vec![self.blob_dir().join(".incoming"), self.blob_dir().join(".multipart")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder of incoming uploads") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                std::fs::File::open(&path)
                    .and_then(|file| file.set_modified(hour_ago))
                    .expect("the time is set");
            }
        }
    }

    pub async fn start(&self) -> TestApp {
        self.start_with(Faults::none()).await
    }

    pub async fn start_as(&self, roles: &str) -> TestApp {
        self.start_process(Roles::parse(roles).expect("roles"), Faults::none()).await
    }

    /// Starts a server with one setting changed, or removed if the value is empty.
    pub async fn start_but(&self, setting: &'static str, value: &str) -> TestApp {
        let mut settings = self.settings.clone();
        settings.retain(|(name, _)| *name != setting);
        if !value.is_empty() {
            settings.push((setting, value.to_owned()));
        }
        self.start_from(settings, Roles::all(), Faults::none()).await
    }

    /// The calls of the start are not counted, so the first counted call belongs to an operation.
    pub async fn start_with(&self, faults: Faults) -> TestApp {
        self.start_process(Roles::all(), faults).await
    }

    async fn start_process(&self, roles: Roles, faults: Faults) -> TestApp {
        self.start_from(self.settings.clone(), roles, faults).await
    }

    async fn start_from(
        &self,
        settings: Vec<(&'static str, String)>,
        roles: Roles,
        faults: Faults,
    ) -> TestApp {
        if wharfinger::config::log_filter().is_some() {
            wharfinger::telemetry::log_to_stderr("info", "test");
        }
        let flags = Flags { config: None, overrides: settings };
        let values = Values::read(&flags).expect("known settings");
        let settings = Settings::from_values(&values).expect("possible settings");
        let secrets = prepare_secrets(&settings).expect("secrets");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        faults.pause(true);
        let public_url = settings.public_url.clone().unwrap_or_else(|| url.clone());
        let mut app = App::open(settings, &secrets, self.clock.clone(), faults.clone(), public_url)
            .await
            .expect("the app opens");
        faults.pause(false);
        app.roles = roles;
        Arc::get_mut(&mut app.pipeline).expect("not shared yet").extractor =
            env!("CARGO_BIN_EXE_wharfinger").into();
        let app = Arc::new(app);
        let stop = CancellationToken::new();
        tokio::spawn(http::serve(
            listener,
            http::router(app.clone()),
            ConnectionLimits::none(),
            stop.clone(),
        ));
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .expect("a client");
        TestApp { app, url, stop, http: client }
    }
}

impl TestApp {
    /// Drops the server and waits until all its tasks and connections have ended.
    pub async fn crash(self) {
        let core = Arc::downgrade(&self.app.core);
        drop(self);
        let dropped = async {
            while core.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), dropped).await.expect("the server is dropped");
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn caller(tenant: &str, user: &str, role: Role) -> Caller {
    Caller {
        tenant: TenantId::new(tenant).expect("a tenant"),
        user: UserId::new(user).expect("a user"),
        role,
    }
}

impl TestApp {
    pub fn token(&self, tenant: &str, user: &str, role: Role) -> String {
        let expires_at = self.app.core.clock.now() + 365 * 86_400_000;
        self.app.tokens.mint(&caller(tenant, user, role), expires_at).expect("a secret to sign with")
    }

    /// User `u` of tenant `t`.
    pub fn me(&self) -> Client<'_> {
        self.as_user("t", "u", Role::User)
    }

    pub fn operator(&self) -> Client<'_> {
        self.as_user("ops", "op", Role::Operator)
    }

    pub fn as_user(&self, tenant: &str, user: &str, role: Role) -> Client<'_> {
        Client { server: self, token: self.token(tenant, user, role) }
    }

    pub async fn metrics(&self) -> String {
        let answer = self.http.get(format!("{}/metrics", self.url)).send().await.expect("an answer");
        answer.text().await.expect("a text")
    }

    /// Runs all background work that is due at the clock's time.
    pub async fn settle(&self) {
        Box::pin(worker::run_all_due(&self.app)).await.expect("background work");
    }

    /// Scans for orphans and deletes them.
    pub async fn scan_orphans(&self) -> orphan_blobs::Outcome {
        orphan_blobs::run(&self.app.core, &SweepLease::unleased(&self.app.core)).await.expect("a scan")
    }

    /// Uploads in one or several parts, as the grant says. Returns the last answer.
    pub async fn put_bytes(&self, grant: &Value, bytes: &[u8]) -> Answer {
        if let Some(parts) = grant["multipart"]["parts"].as_array() {
            let part_size = grant["multipart"]["partSize"].as_u64().expect("a size") as usize;
            let mut last = None;
            for (part, bytes) in parts.iter().zip(bytes.chunks(part_size)) {
                let url = part["url"].as_str().expect("a URL");
                let answer = self.http.put(url).body(bytes.to_vec()).send().await.expect("an answer");
                last = Some(Answer::read(answer).await);
            }
            return last.expect("at least one part");
        }
        let url = grant["uploadUrl"].as_str().expect("an upload URL");
        let request = self.http.put(url).header("content-length", bytes.len());
        let mut request = request.body(bytes.to_vec());
        for (name, value) in grant["headers"].as_object().into_iter().flatten() {
            request = request.header(name, value.as_str().expect("a header's text"));
        }
        Answer::read(request.send().await.expect("an answer")).await
    }
}

/// Calls the API with a token.
pub struct Client<'a> {
    pub server: &'a TestApp,
    pub token: String,
}

impl Client<'_> {
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.server.http.request(method, format!("{}{path}", self.server.url)).bearer_auth(&self.token)
    }

    pub async fn send(&self, request: RequestBuilder) -> Answer {
        Answer::read(request.send().await.expect("an answer")).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    pub async fn init(&self, name: &str, size: u64) -> Answer {
        self.post("/api/v2/files/init", json!({ "fileName": name, "size": size })).await
    }

    pub async fn confirm(&self, id: &str) -> Answer {
        self.post(&format!("/api/v2/files/{id}/confirm"), json!({})).await
    }

    /// Uploads and confirms a file, which is then ready. Returns its id.
    pub async fn upload(&self, name: &str, bytes: &[u8]) -> String {
        self.upload_until(name, bytes, "ready").await
    }

    /// Uploads and confirms a file, which then waits for its first stage. Returns its id.
    pub async fn enqueue(&self, name: &str, bytes: &[u8]) -> String {
        self.upload_until(name, bytes, "queued").await
    }

    async fn upload_until(&self, name: &str, bytes: &[u8], status: &str) -> String {
        let grant = self.init(name, bytes.len() as u64).await.expect(201);
        self.server.put_bytes(&grant, bytes).await.expect(200);
        let id = grant["fileId"].as_str().expect("an id").to_owned();
        assert_eq!(self.confirm(&id).await.expect(200)["status"], status);
        id
    }

    pub async fn file(&self, id: &str) -> Value {
        self.get(&format!("/api/v2/files/{id}")).await.expect(200)
    }

    pub async fn used(&self) -> u64 {
        self.get("/api/v2/quota").await.expect(200)["used"].as_u64().expect("a number")
    }
}
