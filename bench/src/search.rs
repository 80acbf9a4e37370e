//! Search over one owner's chunks by two servers on one database. One was started before pgvector was installed, so it
//! compares in its own process. Beside it the bare comparison in SQL.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use crate::server::{Server, base, binary, client};
use crate::stages::write_text;
use crate::timing::say;

const TEXT_BYTES: u64 = 54 << 20;
const ROUNDS: usize = 3;
const SEARCHES: usize = 15;
const QUERIES: [&str; 3] = ["berth 42 holds crates", "coffee for overseas", "line 123456"];
const NOT_COPIED: &str = "SELECT COUNT(*) FROM chunks WHERE vector IS NOT NULL AND embedding IS NULL";

pub(crate) async fn run() {
    let postgres = harness::postgres::shared_with_pgvector();
    let url = postgres.create_database();
    let settings = [("PIPELINE_STAGES", "scan,extract,chunk,embed".to_owned())];
    let in_process = Server::start_with(Some(&url), &settings).await;
    let took = embed(&in_process).await;
    let mut database = PgConnection::connect(&url).await.expect("a connection");
    let chunks: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM chunks").fetch_one(&mut database).await.expect("a count");
    let dimensions: i32 = sqlx::query_scalar("SELECT octet_length(vector) / 4 FROM chunks LIMIT 1")
        .fetch_one(&mut database)
        .await
        .expect("a length");
    say(format!("{chunks} vectors of {dimensions} dimensions, embedded in {:.1} s", took.as_secs_f64()));

    postgres.psql(&url, "CREATE EXTENSION vector").expect("pgvector");
    let data = in_process.blob_dir().parent().expect("the folder of its data").display().to_string();
    let [stages] = settings;
    let started = Instant::now();
    let in_database = Server::start_with(Some(&url), &[stages, ("WHARFINGER_DATA_DIR", data)]).await;
    let ready = in_database.ready_after;
    while sqlx::query_scalar::<_, i64>(NOT_COPIED).fetch_one(&mut database).await.expect("a count") > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    say(format!(
        "pgvector installed: the next start is ready after {:.1} s, and all are copied after {:.1} s",
        ready.as_secs_f64(),
        started.elapsed().as_secs_f64()
    ));
    postgres.psql(&url, "VACUUM ANALYZE chunks").expect("analyzed");

    let expected = hits(&in_process, QUERIES[0]).await;
    assert_eq!(hits(&in_database, QUERIES[0]).await, expected, "both find the same");
    for round in 1..=ROUNDS {
        let (process_took, database_took) = (searches(&in_process).await, searches(&in_database).await);
        let bare = bare(&mut database).await;
        say(format!(
            "round {round}, p50 of {SEARCHES} searches: in the process {:.0} ms, in the database {:.0} ms, {:.1} times as \
             fast; the bare distances in SQL {:.0} ms",
            ms(process_took),
            ms(database_took),
            ms(process_took) / ms(database_took),
            ms(bare)
        ));
    }
    let mib = |server: &Server| server.peak_kib() as f64 / 1024.0;
    say(format!("maximum resident size: {:.0} MiB and {:.0} MiB", mib(&in_process), mib(&in_database)));
}

/// Puts a text and waits until it is ready. Returns the duration.
async fn embed(server: &Server) -> Duration {
    let folder = tempfile::tempdir_in(base()).expect("a folder");
    let file = folder.path().join("quota_context.txt");
    write_text(&file, TEXT_BYTES);
    let started = Instant::now();
    let put = Command::new(binary())
        .arg("put")
        .arg(&file)
        .env("WHARFINGER_URL", &server.url)
        .env("WHARFINGER_TOKEN", &server.token)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(put.expect("put runs").success());
    loop {
        let request = client().get(format!("{}/api/v2/files", server.url)).bearer_auth(&server.token);
        let files: Value = request.send().await.expect("an answer").json().await.expect("JSON");
        match files["files"][0]["status"].as_str() {
            Some("ready") => return started.elapsed(),
            Some("failed" | "quarantined") => panic!("{}", files["files"][0]["error"]),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn hits(server: &Server, query: &str) -> Value {
    let request = client().post(format!("{}/api/v2/search", server.url)).bearer_auth(&server.token);
    let answer = request.json(&json!({ "query": query, "limit": 10 })).send().await.expect("an answer");
    let answer: Value = answer.json().await.expect("JSON");
    assert_eq!(answer["hits"].as_array().map(Vec::len), Some(10), "{answer}");
    answer
}

async fn searches(server: &Server) -> Duration {
    let mut took = Vec::new();
    for query in QUERIES.iter().cycle().take(SEARCHES) {
        let started = Instant::now();
        hits(server, query).await;
        took.push(started.elapsed());
    }
    median(took)
}

async fn bare(database: &mut PgConnection) -> Duration {
    let sql = "SELECT MIN(embedding <=> (SELECT embedding FROM chunks WHERE ordinal = 7)) FROM chunks";
    let mut took = Vec::new();
    for _ in 0..SEARCHES {
        let started = Instant::now();
        sqlx::query_scalar::<_, f64>(sql).fetch_one(&mut *database).await.expect("a distance");
        took.push(started.elapsed());
    }
    median(took)
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1_000.0
}
