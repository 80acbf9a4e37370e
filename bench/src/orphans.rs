//! The store compared with the catalog, beside a bare listing of the same store and a comparison with all keys in
//! memory. One object in a hundred has no row.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use sqlx::Connection as _;
use wharfinger::app::App;
use wharfinger::clock::Clock;
use wharfinger::config::{Flags, Settings, Values, prepare_secrets};
use wharfinger::sweeps::{SweepLease, orphan_blobs};
use wharfinger_calls::faults::Faults;

use crate::server::base;
use crate::timing::{rate, say};

const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];
const USERS: usize = 97;
const ONE_ORPHAN_IN: usize = 100;

pub(crate) async fn run() {
    let sizes: Vec<usize> = std::env::args().skip(2).filter_map(|size| size.parse().ok()).collect();
    for postgres in [false, true] {
        for objects in if sizes.is_empty() { SIZES.to_vec() } else { sizes.clone() } {
            measure(objects, postgres).await;
        }
    }
}

async fn measure(objects: usize, postgres: bool) {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let database = match postgres {
        true => harness::postgres::shared().create_database(),
        false => format!("sqlite:{}", folder.path().join("wharfinger.db").display()),
    };
    let app = open(folder.path(), &database).await;
    fill_store(&folder.path().join("blobs"), objects);
    let rows = fill_catalog(&database).replace("{objects}", &objects.to_string());
    write(&database, &rows).await;

    let (bare, bare_peak) = peak_of(bare_listing(&app, objects)).await;
    let (dry, dry_peak) = peak_of(scan(&app, &SweepLease::dry_run(&app.core), objects)).await;
    let (real, real_peak) = peak_of(scan(&app, &SweepLease::unleased(&app.core), objects)).await;
    let (again, _) = peak_of(async {
        let started = Instant::now();
        let nothing = orphan_blobs::run(&app.core, &SweepLease::unleased(&app.core)).await.expect("a scan");
        assert_eq!(nothing.total, 0);
        started.elapsed()
    })
    .await;
    // Last, because its memory is not returned to the system at once.
    let (naive, naive_peak) = peak_of(in_memory(&app, &database)).await;
    let line = |name: &str, took: Duration, peak: u64| {
        format!(
            "  {name:<32} {:>8.0} objects/s  {:>7.2} s  {:>4} MiB  {:.2} of the bare listing's time",
            rate(objects, took),
            took.as_secs_f64(),
            peak / 1024,
            took.as_secs_f64() / bare.as_secs_f64(),
        )
    };
    say(format!("{}, {objects} objects and rows:", if postgres { "PostgreSQL" } else { "SQLite" }));
    say(line("bare listing", bare, bare_peak));
    say(line("all keys in memory", naive, naive_peak));
    say(line("ours, dry run", dry, dry_peak));
    say(line("ours, one in a hundred deleted", real, real_peak));
    say(line("ours, nothing to find", again, real_peak));
}

async fn open(folder: &Path, database: &str) -> App {
    let overrides = vec![
        ("WHARFINGER_DATA_DIR", folder.display().to_string()),
        ("WHARFINGER_DATABASE_URL", database.to_owned()),
        ("WHARFINGER_JWT_SECRET", "a secret of thirty-two bytes or more".to_owned()),
        ("ORPHAN_BLOB_GRACE_MS", "0".to_owned()),
    ];
    let values = Values::read(&Flags { config: None, overrides }).expect("known settings");
    let settings = Settings::from_values(&values).expect("possible settings");
    let secrets = prepare_secrets(&settings).expect("secrets");
    App::open(settings, &secrets, Clock::system(), Faults::none(), "http://localhost".into())
        .await
        .expect("the app opens")
}

fn fill_store(root: &Path, objects: usize) {
    for user in 0..USERS {
        std::fs::create_dir_all(root.join(format!("uploads/t/u{user}"))).expect("a user's folder");
    }
    for n in 0..objects {
        let user = n % USERS;
        let name = format!("uploads/t/u{user}/00000000-0000-7000-8000-{n:012x}");
        std::fs::File::create(root.join(name)).expect("an object");
    }
}

/// Rows of a ready file and its object, for all except one in a hundred.
fn fill_catalog(database: &str) -> String {
    let (id, numbers) = match database.starts_with("sqlite") {
        true => (
            "printf('00000000-0000-7000-8000-%012x', i)",
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {objects} - 1)",
        ),
        false => (
            "'00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0')",
            "WITH n (i) AS (SELECT generate_series(0, {objects} - 1))",
        ),
    };
    let key = format!("'uploads/t/u' || CAST(i % {USERS} AS TEXT) || '/' || {id}");
    let some = format!("FROM n WHERE i % {ONE_ORPHAN_IN} <> 0");
    format!(
        "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, \
         charged_bytes, retry_count, etag, url_dead_at, created_at, updated_at, confirmed_at, ready_at) {numbers} \
         SELECT {id}, 't', 'u' || CAST(i % {USERS} AS TEXT), 'a', 0, {key}, 'ready', 1, 0, 0, 'e', 1, 1, 1, 1, 1 {some};\n\
         INSERT INTO objects (key, file_id, kind, created_at) {numbers} SELECT {key}, {id}, 'original', 1 {some};\n"
    )
}

async fn write(database: &str, statements: &str) {
    for statement in statements.split(";\n").filter(|statement| !statement.is_empty()) {
        let statement = sqlx::AssertSqlSafe(statement.to_owned());
        if let Some(path) = database.strip_prefix("sqlite:") {
            let mut connection = sqlx::SqliteConnection::connect(path).await.expect("a connection");
            sqlx::query(statement).execute(&mut connection).await.expect("rows");
        } else {
            let mut connection = sqlx::PgConnection::connect(database).await.expect("a connection");
            sqlx::query(statement).execute(&mut connection).await.expect("rows");
            sqlx::query("ANALYZE").execute(&mut connection).await.expect("analyzed");
        }
    }
}

/// Runs the measurement. Also returns the maximum resident size in KiB.
async fn peak_of<T>(work: impl Future<Output = T>) -> (T, u64) {
    // Resets the maximum.
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux");
    let answer = work.await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    (answer, line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0))
}

async fn bare_listing(app: &App, objects: usize) -> Duration {
    let started = Instant::now();
    let listed = app.core.blobs.list("uploads/", None).try_fold(0, async |count, _| Ok(count + 1)).await;
    assert_eq!(listed.expect("a listing"), objects);
    started.elapsed()
}

/// The simplest comparison: both directions, without checkpoints, second checks and order.
async fn in_memory(app: &App, database: &str) -> Duration {
    const KEYS: &str = "SELECT key FROM objects";
    let started = Instant::now();
    let mut known: HashSet<String> = if let Some(path) = database.strip_prefix("sqlite:") {
        let mut connection = sqlx::SqliteConnection::connect(path).await.expect("a connection");
        sqlx::query_scalar(KEYS).fetch(&mut connection).try_collect().await.expect("keys")
    } else {
        let mut connection = sqlx::PgConnection::connect(database).await.expect("a connection");
        sqlx::query_scalar(KEYS).fetch(&mut connection).try_collect().await.expect("keys")
    };
    let mut orphans = Vec::new();
    let mut listing = app.core.blobs.list("uploads/", None);
    while let Some(listed) = listing.next().await {
        let key = listed.expect("an object").key;
        if !known.remove(&key) {
            orphans.push(key);
        }
    }
    assert_eq!((orphans.len(), known.len()), (0, 0));
    started.elapsed()
}

async fn scan(app: &App, lease: &SweepLease, objects: usize) -> Duration {
    let started = Instant::now();
    let found = orphan_blobs::run(&app.core, lease).await.expect("a scan");
    let took = started.elapsed();
    let orphans = (objects / ONE_ORPHAN_IN) as u64;
    let deleted = if lease.is_dry_run() { 0 } else { orphans };
    assert_eq!((found.listed, found.total, found.deleted), (objects as u64, orphans, deleted), "{found:?}");
    took
}
