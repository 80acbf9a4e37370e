//! A whole server in this process: real HTTP on a private port, a real catalog, a clock that tests move.

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

/// Any moment will do; this one is in the past, so that nothing depends on the machine's clock.
pub const START: i64 = 1_750_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
    /// PostgreSQL with the extension, for what concerns search.
    Pgvector,
}

/// Asks until there is an answer: of hundreds at once some may find no connection on a busy machine, and are told to
/// try again. They have waited for one before that; any other 503 is not forgiven.
pub async fn patiently<F: Future<Output = Answer>>(ask: impl Fn() -> F) -> Answer {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        let answer = ask().await;
        if answer.status != 503 {
            return answer;
        }
        let problem = answer.expect_problem(503, "unavailable");
        assert!(asked.elapsed() > Duration::from_secs(4), "refused at once: {problem}");
        assert!(began.elapsed() < Duration::from_secs(300), "refused for ever: {problem}");
    }
}

/// Makes each of these functions a test on SQLite and one on PostgreSQL.
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

/// The figures of `/metrics` are those of the process, and each scrape sets them anew: tests that compare them take turns.
pub static METRICS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What outlives a crash: folders and a database. Servers come and go on top of it.
pub struct TestEnv {
    folder: TempDir,
    settings: Vec<(&'static str, String)>,
    pub clock: Clock,
}

pub struct DiskAway {
    from: PathBuf,
    to: PathBuf,
}

impl DiskAway {
    pub fn come_back(self) {
        std::fs::remove_dir_all(&self.from).expect("the mount point");
        std::fs::rename(&self.to, &self.from).expect("the disk comes back");
    }
}

pub struct TestApp {
    pub app: Arc<App>,
    pub url: String,
    stop: CancellationToken,
    pub http: reqwest::Client,
}

/// Runs a query on a connection of its own to whichever database the env has.
macro_rules! behind_its_back {
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

    /// For servers that are processes of their own and live by the machine's clock.
    pub fn in_real_time(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
        TestEnv { clock: Clock::system(), ..TestEnv::with(database, settings) }
    }

    /// The settings of this env as environment variables.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.settings.iter().map(|(name, value)| (*name, value.as_str()))
    }

    pub fn with(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut all = vec![("WHARFINGER_DATA_DIR", folder.path().join("data").display().to_string())];
        // Most tests are about uploads: what is confirmed is ready at once, unless the test says otherwise.
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

    /// With these stages to go through.
    pub fn with_stages(database: Database, stages: &str, settings: &[(&'static str, &str)]) -> TestEnv {
        let mut all = vec![("PIPELINE_STAGES", stages)];
        all.extend(settings);
        TestEnv::with(database, &all)
    }

    /// With a fresh bucket of a Ceph gateway as its store.
    pub fn on_s3(database: Database, settings: &[(&'static str, &str)]) -> TestEnv {
        let server = harness::radosgw::shared();
        let bucket = server.create_bucket();
        TestEnv::in_bucket(database, &bucket, &server.endpoint(), settings)
    }

    /// With a Redis in front of the quotas.
    pub fn with_redis(database: Database, redis: &str, settings: &[(&'static str, &str)]) -> TestEnv {
        // As long as a machine may be busy with other things.
        let mut all = vec![("WHARFINGER_QUOTA_URL", redis), ("QUOTA_REDIS_TIMEOUT_MS", "30000")];
        all.extend(settings);
        TestEnv::with(database, &all)
    }

    /// The same env for servers that are set otherwise.
    pub fn also(mut self, settings: &[(&'static str, &str)]) -> TestEnv {
        self.settings.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
        self
    }

    /// The same env for a server that has one setting less.
    pub fn without(&self, setting: &str) -> TestEnv {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = self.settings.iter().filter(|(name, _)| *name != setting).cloned().collect();
        TestEnv { folder, settings, clock: self.clock.clone() }
    }

    /// With a fresh container of Azurite as its store.
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

    /// With a bucket that is there, at an address of the gateway or of something in front of it.
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

    /// Nothing but folders, which one process has to itself.
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

    /// A number of a PostgreSQL that may be away.
    pub async fn try_scalar(&self, sql: &'static str) -> Option<i64> {
        let (_, url) = self.settings.iter().find(|(name, _)| *name == "WHARFINGER_DATABASE_URL")?;
        let mut connection = sqlx::PgConnection::connect(url).await.ok()?;
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.ok()
    }

    /// A number read from the catalog behind the program's back.
    pub async fn scalar(&self, sql: &str) -> i64 {
        behind_its_back!(self, sqlx::query_scalar(AssertSqlSafe(sql.to_owned())), fetch_one)
    }

    fn loaded_settings(&self) -> Settings {
        let overrides = self.environment().map(|(name, value)| (name, value.to_owned())).collect();
        let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
        Settings::from_values(&values).expect("possible settings")
    }

    /// The catalog by itself, with its schema.
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

    /// The store that others serve, by itself.
    pub async fn blobs(&self) -> Arc<dyn BlobStore> {
        self.loaded_settings().blobs.connect().await.expect("reached").expect("a store that others serve")
    }

    /// Texts read from the catalog behind the program's back.
    pub async fn texts(&self, sql: &'static str) -> Vec<String> {
        behind_its_back!(self, sqlx::query_scalar(sql), fetch_all)
    }

    /// An unmounted disk: the folder is there, and empty.
    pub fn take_the_disk_away(&self) -> DiskAway {
        let away = DiskAway { from: self.blob_dir(), to: self.folder.path().join("unmounted") };
        std::fs::rename(&away.from, &away.to).expect("the disk goes");
        std::fs::create_dir(&away.from).expect("its mount point stays");
        away
    }

    /// A change of the catalog behind the program's back.
    pub async fn execute(&self, sql: &'static str) {
        behind_its_back!(self, sqlx::query_scalar::<_, i64>(sql), fetch_all);
    }

    pub fn advance(&self, ms: i64) {
        self.clock.advance(Duration::from_millis(u64::try_from(ms).expect("time goes forward")));
    }

    /// Makes what crashed uploads left look an hour old, as the clock that is moved does not reach the disk's.
    pub fn age_incoming_uploads(&self) {
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3_600);
        for entry in
            std::fs::read_dir(self.blob_dir().join(".incoming")).expect("the folder of uploads on their way")
        {
            let file = std::fs::File::options().write(true).open(entry.expect("an entry").path());
            file.and_then(|file| file.set_modified(hour_ago)).expect("a file of ours");
        }
    }

    pub async fn start(&self) -> TestApp {
        self.start_with(Faults::none()).await
    }

    pub async fn start_as(&self, roles: &str) -> TestApp {
        self.start_process(Roles::parse(roles).expect("roles"), Faults::none()).await
    }

    /// On the same env a server of which one setting is another; empty: it has none.
    pub async fn start_but(&self, setting: &'static str, value: &str) -> TestApp {
        let mut settings = self.settings.clone();
        settings.retain(|(name, _)| *name != setting);
        if !value.is_empty() {
            settings.push((setting, value.to_owned()));
        }
        self.start_from(settings, Roles::all(), Faults::none()).await
    }

    /// The faults begin when the server has: the first call counted is a verb's.
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
            wharfinger::telemetry::log_to_stderr("info");
        }
        let flags = Flags { config: None, overrides: settings };
        let values = Values::read(&flags).expect("known settings");
        let settings = Settings::from_values(&values).expect("possible settings");
        let secrets = prepare_secrets(&settings).expect("secrets");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        faults.pause(true);
        let mut app = App::open(settings, &secrets, self.clock.clone(), faults.clone(), url.clone())
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
    /// Drops everything and waits until nothing of it is left: no task, no connection.
    pub async fn crash(self) {
        let left = Arc::downgrade(&self.app.core);
        drop(self);
        let gone = async {
            while left.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the server goes away");
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

    /// Does all background work that is due at the clock's time.
    pub async fn settle(&self) {
        Box::pin(worker::run_all_due(&self.app)).await.expect("background work");
    }

    /// Compares the store with the catalog, and deletes what nobody answers for.
    pub async fn scan_orphans(&self) -> orphan_blobs::Outcome {
        orphan_blobs::run(&self.app.core, &SweepLease::unleased(&self.app.core)).await.expect("a scan")
    }

    /// Whole or in parts, as it was granted; of parts the last answer.
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

/// Calls with a token.
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

    /// A file that is uploaded and confirmed, and ready by that; answers its id.
    pub async fn upload(&self, name: &str, bytes: &[u8]) -> String {
        self.upload_until(name, bytes, "ready").await
    }

    /// A file that waits for its first stage; answers its id.
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
