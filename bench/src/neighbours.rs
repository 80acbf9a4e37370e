//! The effect of one tenant's problem on another tenant: objects that the store refuses, a hundred searches at once,
//! and a migration of large tables. Each is measured with and without the problem in one run.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use crate::server::{Server, base, binary, client};
use crate::stages::write_text;
use crate::timing::{Timing, say};
use crate::uploads::call;

const REFUSED: usize = 20;
const FILES: usize = 400;
const SEARCHES: usize = 100;
const TEXT_BYTES: u64 = 20 << 20;
const RUN: Duration = Duration::from_secs(15);
const ROWS: usize = 2_000_000;
const INDEXES: [&str; 3] = ["files_by_owner", "files_to_check", "files_charged"];

pub(crate) async fn run() {
    let only = std::env::args().nth(2);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wanted("refused") {
        refused().await;
    }
    if wanted("searches") {
        searches().await;
    }
    if wanted("migration") {
        migration(None).await;
        migration(Some(harness::postgres::shared().create_database())).await;
    }
}

fn token(server: &Server, tenant: usize) -> String {
    server.tokens(tenant + 1, 1).pop().expect("a token")
}

/// Init, bytes and confirm. Returns the file's id.
async fn upload(server: &Server, token: &str, tenant: usize) -> String {
    let http = client();
    let body = json!({ "fileName": "x.txt", "size": 5 });
    let (grant, _) =
        call(&http, token, Method::POST, format!("{}/api/v2/files/init", server.url), Some(body)).await;
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    let folder = server.blob_dir().join(format!("uploads/t{tenant}/u0"));
    std::fs::create_dir_all(&folder).expect("the user's folder");
    std::fs::write(folder.join(&id), b"hello").expect("its bytes");
    let url = format!("{}/api/v2/files/{id}/confirm", server.url);
    call(&http, token, Method::POST, url, Some(json!({}))).await;
    id
}

async fn until_ready(server: &Server, token: &str, id: &str) {
    let http = client();
    loop {
        let (file, _) =
            call(&http, token, Method::GET, format!("{}/api/v2/files/{id}", server.url), None).await;
        if file["status"] == "ready" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn refused() {
    let mut took = Vec::new();
    for refused in [0, REFUSED] {
        let folder = tempfile::tempdir_in(base()).expect("a folder");
        let data = ("WHARFINGER_DATA_DIR", folder.path().join("data").display().to_string());
        let stages = ("PIPELINE_STAGES", "scan".to_owned());
        let idle = ("PIPELINE_BUILTIN_STAGES", String::new());
        let server = Server::start_with(None, &[data.clone(), stages.clone(), idle]).await;
        let bad = token(&server, 0);
        for _ in 0..refused {
            let id = upload(&server, &bad, 0).await;
            let path = server.blob_dir().join("uploads/t0/u0").join(id);
            std::fs::remove_file(&path).expect("removed");
            std::os::unix::fs::symlink(&path, &path).expect("a link to itself");
        }
        drop(server);
        let server = Server::start_with(None, &[data, stages]).await;
        let good = token(&server, 1);
        let started = Instant::now();
        let mut last = String::new();
        for _ in 0..FILES {
            last = upload(&server, &good, 1).await;
        }
        until_ready(&server, &good, &last).await;
        took.push(started.elapsed().as_secs_f64());
    }
    say(format!(
        "{FILES} files of one tenant, uploaded one after the other, until the last is ready: {:.2} s alone, {:.2} s beside \
         {REFUSED} objects of another that cannot be read ({:.2} times)",
        took[0],
        took[1],
        took[1] / took[0]
    ));
}

async fn searches() {
    let settings = [("PIPELINE_STAGES", "scan,extract,chunk,embed".to_owned())];
    let server = Server::start_with(None, &settings).await;
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let file = folder.path().join("quota_context.txt");
    write_text(&file, TEXT_BYTES);
    let (searcher, other) = (token(&server, 0), token(&server, 1));
    put(&server, &searcher, &file);
    until_all_ready(&server, &searcher).await;
    for searches in [0, SEARCHES] {
        let searching: Vec<_> = (0..searches)
            .map(|_| {
                let (url, token) = (format!("{}/api/v2/search", server.url), searcher.clone());
                tokio::spawn(async move {
                    let http = client();
                    let mut answers = [0, 0];
                    loop {
                        let body = json!({ "query": "coffee for overseas", "limit": 10 });
                        let sent = http.post(&url).bearer_auth(&token).json(&body).send().await;
                        answers[usize::from(sent.is_ok_and(|answer| answer.status() == 200))] += 1;
                        if answers[0] % 100 == 99 {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (mut readyz, mut pipeline) = (Timing::default(), Timing::default());
        let until = Instant::now() + RUN;
        let http = client();
        while Instant::now() < until {
            let (_, took) = call(&http, &other, Method::GET, format!("{}/readyz", server.url), None).await;
            readyz.add(took);
            let started = Instant::now();
            let id = upload(&server, &other, 1).await;
            until_ready(&server, &other, &id).await;
            pipeline.add(started.elapsed());
        }
        searching.iter().for_each(|task| task.abort());
        say(format!(
            "beside {searches} searches at once of another tenant ({} MiB of text):",
            TEXT_BYTES >> 20
        ));
        say(readyz.line("/readyz"));
        say(pipeline.line("init to ready"));
    }
}

pub(crate) fn put(server: &Server, token: &str, file: &Path) {
    let put = Command::new(binary())
        .arg("put")
        .arg(file)
        .env("WHARFINGER_URL", &server.url)
        .env("WHARFINGER_TOKEN", token)
        .stdout(Stdio::null())
        .status()
        .expect("the binary runs");
    assert!(put.success());
}

async fn until_all_ready(server: &Server, token: &str) {
    let http = client();
    loop {
        let (list, _) = call(&http, token, Method::GET, format!("{}/api/v2/files", server.url), None).await;
        let files = list["files"].as_array().expect("a list");
        if !files.is_empty() && files.iter().all(|file| file["status"] == "ready") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// `migrate` builds three missing indexes on a table of two million rows, beside running requests.
async fn migration(database: Option<String>) {
    let name = if database.is_some() { "PostgreSQL" } else { "SQLite" };
    let server = Server::start(database.as_deref()).await;
    let sqlite = server.blob_dir().with_file_name("wharfinger.db");
    execute(database.as_deref(), &sqlite, &rows(database.is_some())).await;
    call_init(&server, name, "before", None).await;
    let drop = INDEXES.map(|index| format!("DROP INDEX {index}")).join("; ");
    execute(database.as_deref(), &sqlite, &drop).await;
    let mut migrating = Command::new(binary());
    migrating.arg("migrate").env("WHARFINGER_DATA_DIR", server.blob_dir().with_file_name(""));
    if let Some(url) = &database {
        migrating.env("WHARFINGER_DATABASE_URL", url);
    }
    let started = Instant::now();
    let mut migrating = migrating.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    call_init(&server, name, "while three indexes are built", Some(&mut migrating)).await;
    let status = migrating.wait().expect("it ends");
    say(format!(
        "  migrate: {status}, {:.1} s for {} indexes of {ROWS} rows",
        started.elapsed().as_secs_f64(),
        INDEXES.len()
    ));
}

/// One client calls init until the time is over or the process has exited.
async fn call_init(server: &Server, name: &str, when: &str, mut process: Option<&mut std::process::Child>) {
    let http = client();
    let (mut init, mut failed) = (Timing::default(), 0);
    let (mut longest, started) = (Duration::ZERO, Instant::now());
    loop {
        let is_over = match &mut process {
            Some(process) => process.try_wait().expect("a state").is_some(),
            None => started.elapsed() > RUN,
        };
        if is_over {
            break;
        }
        let asked = Instant::now();
        let answer = http
            .post(format!("{}/api/v2/files/init", server.url))
            .bearer_auth(&server.token)
            .json(&json!({ "fileName": "x", "size": 4 }))
            .send()
            .await;
        failed += usize::from(!answer.is_ok_and(|answer| answer.status() == 201));
        longest = longest.max(asked.elapsed());
        init.add(asked.elapsed());
    }
    say(format!("{name}, {when}: {failed} failed, longest {:.0} ms", longest.as_secs_f64() * 1e3));
    say(init.line("init"));
}

fn rows(is_postgres: bool) -> String {
    let numbers = match is_postgres {
        true => format!(
            "SELECT '018f4e6e-7f3a-7000-8000-' || lpad(to_hex(n), 12, '0') AS id FROM generate_series(1, {ROWS}) AS n"
        ),
        false => format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS}) \
             SELECT printf('018f4e6e-7f3a-7000-8000-%012x', n) AS id FROM numbers"
        ),
    };
    format!(
        "INSERT INTO files (id, tenant_id, user_id, file_name, size, blob_path, pipeline_status, version, charged_bytes, \
         retry_count, etag, url_dead_at, next_check_at, created_at, updated_at, confirmed_at, ready_at) \
         SELECT id, 'crowd', 'u', 'report.pdf', 1, 'uploads/crowd/u/' || id, 'ready', 3, 1, 0, 'e', 1, NULL, 1, 1, 1, 1 \
         FROM ({numbers}) AS seed"
    )
}

async fn execute(database: Option<&str>, sqlite: &Path, statements: &str) {
    let text = AssertSqlSafe(statements.to_owned());
    match database {
        Some(url) => {
            let mut connection = PgConnection::connect(url).await.expect("a connection");
            sqlx::raw_sql("SET search_path = wharfinger").execute(&mut connection).await.expect("set");
            sqlx::raw_sql(text).execute(&mut connection).await.expect("done");
        }
        None => {
            let options = SqliteConnectOptions::new().filename(sqlite).busy_timeout(Duration::from_secs(600));
            let mut connection = options.connect().await.expect("a connection");
            sqlx::raw_sql(text).execute(&mut connection).await.expect("done");
        }
    }
}
