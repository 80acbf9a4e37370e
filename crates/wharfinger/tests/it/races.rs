//! Confirm, the cleaner, the owner's delete and a late PUT on one file at the same time. Whoever wins, the
//! losers leave nothing.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use rand::Rng as _;
use serde_json::json;

use wharfinger::core::VerbError;

use crate::long::{self, FIXED_SEED};
use crate::oracle;
use crate::test_app::{Answer, Database, TestApp, TestEnv};

const ROUNDS: usize = 600;
const FEW_ROUNDS: usize = 60;
const BYTES: &[u8] = b"contested cargo";

/// Puts off a task by a few turns of the scheduler, another number each time.
async fn dither(seed: usize) {
    for _ in 0..seed % 4_001 {
        tokio::task::yield_now().await;
    }
}

async fn contest(env: &TestEnv, server: &TestApp, round: usize) {
    let me = server.me();
    let grant = me.init("cargo", BYTES.len() as u64).await.expect(201);
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    let path = format!("/api/v2/files/{id}");
    server.put_bytes(&grant, BYTES).await.expect(200);
    // Past the window: the cleaner may take it, and a confirm that comes now may still be first.
    env.advance(2 * 3_600_000);

    let confirm = async {
        dither(round * 1_009).await;
        me.post(&format!("{path}/confirm"), json!({})).await
    };
    let clean = async {
        dither(round * 13).await;
        server.settle().await;
    };
    let delete = async {
        dither(round * 701).await;
        if round.is_multiple_of(3) { Some(me.delete(&path).await) } else { None }
    };
    let (confirmed, (), deleted) = tokio::join!(confirm, clean, delete);

    let now = me.get(&path).await;
    match (confirmed.status.as_u16(), deleted.map(|answer| answer.status.as_u16())) {
        // I4: once confirmed, only its owner ends it.
        (200, None) => assert_eq!(now.expect(200)["status"], "ready"),
        (200 | 404, Some(204)) => drop(now.expect_problem(404, "not_found")),
        (410, None | Some(410)) => drop(now.expect_problem(410, "gone")),
        other => panic!("round {round}: {other:?}"),
    }
}

async fn contests(database: Database, rounds: usize, seed: u64) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let first = (seed % 100_000) as usize;
    for round in first..first + rounds {
        contest(&env, &server, round).await;
    }
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
    let outcomes = server.me().get("/api/v2/notifications?limit=1000").await.expect(200);
    let told = outcomes["notifications"].as_array().expect("a list");
    let reclaimed = told.iter().filter(|notice| notice["kind"] == "file-cleaned-up").count();
    let kept =
        server.me().get("/api/v2/files?limit=1000").await.expect(200)["files"].as_array().expect("").len();
    assert!(reclaimed > 0 && kept > 0, "both sides won at least once: {reclaimed} reclaimed, {kept} kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn confirm_against_the_cleaner_on_sqlite() {
    contests(Database::Sqlite, FEW_ROUNDS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn confirm_against_the_cleaner_on_postgres() {
    contests(Database::Postgres, FEW_ROUNDS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn many_contests_on_sqlite() {
    contests(Database::Sqlite, ROUNDS, long::seed()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn many_contests_on_postgres() {
    contests(Database::Postgres, ROUNDS, long::seed()).await;
}

/// Hundreds at once may find no connection for a while, or each other in the way, and are told to try again.
async fn in_the_end<F: Future<Output = Answer>>(ask: impl Fn() -> F) -> Answer {
    let began = Instant::now();
    loop {
        let answer = ask().await;
        if answer.status != 503 || began.elapsed() > PATIENCE {
            return answer;
        }
        answer.expect_problem(503, "unavailable");
    }
}

const PATIENCE: Duration = Duration::from_secs(300);
const WAVES: usize = 20;
const FEW_WAVES: usize = 2;
const FILES_PER_WAVE: usize = 500;

/// Two cleaners against hundreds of confirms at once, each at a random moment. Whatever is confirmed stays, whatever is not
/// goes, and the books are right after every wave (I1 to I6).
async fn confirms_against_two_cleaners(database: Database, waves: usize, seed: u64) {
    let env = TestEnv::new(database);
    let servers = [env.start().await, env.start().await];
    let mut random = long::random(seed);
    let (mut kept, mut gone) = (0, 0);
    for wave in 0..waves {
        let announced = futures::stream::iter(0..FILES_PER_WAVE)
            .map(|n| {
                let server = &servers[n % 2];
                async move {
                    let grant = server.me().init("cargo", BYTES.len() as u64).await.expect(201);
                    server.put_bytes(&grant, BYTES).await.expect(200);
                    grant["fileId"].as_str().expect("an id").to_owned()
                }
            })
            .buffer_unordered(32);
        let files: Vec<String> = announced.collect().await;
        env.advance(2 * 3_600_000);
        let delays: Vec<u64> = files.iter().map(|_| random.random_range(0..400_000)).collect();
        let confirms = futures::stream::iter(files.iter().zip(delays))
            .map(|(id, delay_us)| {
                let server = &servers[delay_us as usize % 2];
                async move {
                    tokio::time::sleep(Duration::from_micros(delay_us)).await;
                    let me = server.me();
                    (id.as_str(), in_the_end(|| me.confirm(id)).await.status.as_u16())
                }
            })
            .buffer_unordered(FILES_PER_WAVE)
            .collect::<Vec<_>>();
        let clean = async |server: &TestApp, delay_us: u64| {
            tokio::time::sleep(Duration::from_micros(delay_us)).await;
            // It stands in line for a connection behind all of them.
            let began = Instant::now();
            while let Err(error) = Box::pin(wharfinger::worker::run_all_due(&server.app)).await {
                let may_repeat = matches!(error, VerbError::Unavailable(_)) && began.elapsed() < PATIENCE;
                assert!(may_repeat, "{error}");
            }
        };
        let (first, second) = (random.random_range(0..200_000), random.random_range(0..200_000));
        let (confirmed, (), ()) =
            tokio::join!(confirms, clean(&servers[0], first), clean(&servers[1], second));
        for (id, status) in confirmed {
            let now = servers[0].me().get(&format!("/api/v2/files/{id}")).await;
            match status {
                200 => assert_eq!(now.expect(200)["status"], "ready", "{id} in wave {wave}"),
                410 => drop(now.expect_problem(410, "gone")),
                other => panic!("{id} in wave {wave}: {other}"),
            }
            *(if status == 200 { &mut kept } else { &mut gone }) += 1;
        }
        oracle::catalog_is_sound(&servers[0]).await;
        assert_eq!(servers[0].me().used().await, kept * BYTES.len() as u64, "wave {wave}");
    }
    assert!(kept > 0 && gone > 0, "both sides won at least once: {kept} kept, {gone} gone");
    servers[0].settle().await;
    oracle::all_is_healed(&env, &servers[0]).await;
}

async fn a_thousand_confirms_against_two_cleaners(database: Database) {
    confirms_against_two_cleaners(database, FEW_WAVES, FIXED_SEED).await;
}

crate::test_app::on_each_database!(a_thousand_confirms_against_two_cleaners);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn ten_thousand_confirms_on_sqlite() {
    confirms_against_two_cleaners(Database::Sqlite, WAVES, long::seed()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn ten_thousand_confirms_on_postgres() {
    confirms_against_two_cleaners(Database::Postgres, WAVES, long::seed()).await;
}

/// Uploads whose file ends while their bytes are on the way: refused or withdrawn, never left.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_against_the_delete_of_its_file() {
    puts_against_deletes(FEW_ROUNDS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn many_puts_against_deletes() {
    puts_against_deletes(ROUNDS, long::seed()).await;
}

async fn puts_against_deletes(rounds: usize, seed: u64) {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let first = (seed % 100_000) as usize;
    for round in first..first + rounds {
        let me = server.me();
        let grant = me.init("cargo", BYTES.len() as u64).await.expect(201);
        let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
        let put = async {
            dither(round * 31).await;
            server.put_bytes(&grant, BYTES).await
        };
        let delete = async {
            dither(round * 127).await;
            me.delete(&path).await.expect(204);
            server.settle().await;
        };
        let (put, ()) = tokio::join!(put, delete);
        assert!(matches!(put.status.as_u16(), 200 | 410), "{}", put.body);
    }
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
    assert_eq!(server.me().used().await, 0);
}
