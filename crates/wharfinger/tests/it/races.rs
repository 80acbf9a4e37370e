//! Concurrent calls on one file: confirm, reclaim, delete and a late PUT. One wins, and the others leave no bytes or
//! charges.

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
const BYTES: &[u8] = b"contested bytes";

/// Delays a task by a varying number of turns of the scheduler.
async fn delay(seed: usize) {
    for _ in 0..seed % 4_001 {
        tokio::task::yield_now().await;
    }
}

async fn race(env: &TestEnv, server: &TestApp, round: usize) {
    let me = server.me();
    let grant = me.init("cargo", BYTES.len() as u64).await.expect(201);
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    let path = format!("/api/v2/files/{id}");
    server.put_bytes(&grant, BYTES).await.expect(200);
    // After the window the file may be reclaimed, but a confirm may still win.
    env.advance(2 * 3_600_000);

    let confirm = async {
        delay(round * 1_009).await;
        me.post(&format!("{path}/confirm"), json!({})).await
    };
    let reclaim = async {
        delay(round * 13).await;
        server.settle().await;
    };
    let delete = async {
        delay(round * 701).await;
        if round.is_multiple_of(3) { Some(me.delete(&path).await) } else { None }
    };
    let (confirmed, (), deleted) = tokio::join!(confirm, reclaim, delete);

    let now = me.get(&path).await;
    match (confirmed.status.as_u16(), deleted.map(|answer| answer.status.as_u16())) {
        // I4: a confirmed file is ended only by its owner.
        (200, None) => assert_eq!(now.expect(200)["status"], "ready"),
        (200 | 404, Some(204)) => drop(now.expect_problem(404, "not_found")),
        (410, None | Some(410)) => drop(now.expect_problem(410, "gone")),
        other => panic!("round {round}: {other:?}"),
    }
}

async fn races(database: Database, rounds: usize, seed: u64) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let first = (seed % 100_000) as usize;
    for round in first..first + rounds {
        race(&env, &server, round).await;
    }
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
    let list = server.me().get("/api/v2/notifications?limit=1000").await.expect(200);
    let notifications = list["notifications"].as_array().expect("a list");
    let reclaimed = notifications.iter().filter(|one| one["kind"] == "file-cleaned-up").count();
    let kept =
        server.me().get("/api/v2/files?limit=1000").await.expect(200)["files"].as_array().expect("").len();
    assert!(reclaimed > 0 && kept > 0, "each side wins at least once: {reclaimed} reclaimed, {kept} kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn confirm_races_with_the_sweep_on_sqlite() {
    races(Database::Sqlite, FEW_ROUNDS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn confirm_races_with_the_sweep_on_postgres() {
    races(Database::Postgres, FEW_ROUNDS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn many_races_on_sqlite() {
    races(Database::Sqlite, ROUNDS, long::seed()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn many_races_on_postgres() {
    races(Database::Postgres, ROUNDS, long::seed()).await;
}

/// Repeats a call that is answered with 503: hundreds of concurrent calls may find no database connection for a while.
async fn retry_unavailable<F: Future<Output = Answer>>(ask: impl Fn() -> F) -> Answer {
    let started = Instant::now();
    loop {
        let answer = ask().await;
        if answer.status != 503 || started.elapsed() > TIMEOUT {
            return answer;
        }
        answer.expect_problem(503, "unavailable");
    }
}

const TIMEOUT: Duration = Duration::from_secs(300);
const WAVES: usize = 20;
const FEW_WAVES: usize = 2;
const FILES_PER_WAVE: usize = 500;

/// Two servers reclaim files during hundreds of confirms at random moments. Confirmed files stay, the others are
/// reclaimed, and the catalog is consistent after each wave (I1 to I6).
async fn race_confirms_with_two_sweepers(database: Database, waves: usize, seed: u64) {
    let env = TestEnv::new(database);
    let servers = [env.start().await, env.start().await];
    let mut random = long::random(seed);
    let (mut kept, mut reclaimed) = (0, 0);
    for wave in 0..waves {
        let uploads = futures::stream::iter(0..FILES_PER_WAVE)
            .map(|n| {
                let server = &servers[n % 2];
                async move {
                    let grant = server.me().init("cargo", BYTES.len() as u64).await.expect(201);
                    server.put_bytes(&grant, BYTES).await.expect(200);
                    grant["fileId"].as_str().expect("an id").to_owned()
                }
            })
            .buffer_unordered(32);
        let files: Vec<String> = uploads.collect().await;
        env.advance(2 * 3_600_000);
        let delays: Vec<u64> = files.iter().map(|_| random.random_range(0..400_000)).collect();
        let confirms = futures::stream::iter(files.iter().zip(delays))
            .map(|(id, delay_us)| {
                let server = &servers[delay_us as usize % 2];
                async move {
                    tokio::time::sleep(Duration::from_micros(delay_us)).await;
                    let me = server.me();
                    (id.as_str(), retry_unavailable(|| me.confirm(id)).await.status.as_u16())
                }
            })
            .buffer_unordered(FILES_PER_WAVE)
            .collect::<Vec<_>>();
        let reclaim = async |server: &TestApp, delay_us: u64| {
            tokio::time::sleep(Duration::from_micros(delay_us)).await;
            // It waits for a database connection behind all the confirms.
            let started = Instant::now();
            while let Err(error) = Box::pin(wharfinger::worker::run_all_due(&server.app)).await {
                let may_repeat = matches!(error, VerbError::Unavailable(_)) && started.elapsed() < TIMEOUT;
                assert!(may_repeat, "{error}");
            }
        };
        let (first, second) = (random.random_range(0..200_000), random.random_range(0..200_000));
        let (confirmed, (), ()) =
            tokio::join!(confirms, reclaim(&servers[0], first), reclaim(&servers[1], second));
        for (id, status) in confirmed {
            let now = servers[0].me().get(&format!("/api/v2/files/{id}")).await;
            match status {
                200 => assert_eq!(now.expect(200)["status"], "ready", "{id} in wave {wave}"),
                410 => drop(now.expect_problem(410, "gone")),
                other => panic!("{id} in wave {wave}: {other}"),
            }
            *(if status == 200 { &mut kept } else { &mut reclaimed }) += 1;
        }
        oracle::catalog_is_sound(&servers[0]).await;
        assert_eq!(servers[0].me().used().await, kept * BYTES.len() as u64, "wave {wave}");
    }
    assert!(kept > 0 && reclaimed > 0, "each side wins at least once: {kept} kept, {reclaimed} reclaimed");
    servers[0].settle().await;
    oracle::all_is_healed(&env, &servers[0]).await;
}

async fn a_thousand_confirms_race_with_two_sweepers(database: Database) {
    race_confirms_with_two_sweepers(database, FEW_WAVES, FIXED_SEED).await;
}

crate::test_app::on_each_database!(a_thousand_confirms_race_with_two_sweepers);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn ten_thousand_confirms_race_on_sqlite() {
    race_confirms_with_two_sweepers(Database::Sqlite, WAVES, long::seed()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn ten_thousand_confirms_race_on_postgres() {
    race_confirms_with_two_sweepers(Database::Postgres, WAVES, long::seed()).await;
}

/// The file is deleted during its upload. The bytes are refused or removed.
#[tokio::test(flavor = "multi_thread")]
async fn puts_race_with_the_deletes_of_their_files() {
    race_puts_with_deletes(FEW_ROUNDS, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: cargo xtask prove"]
async fn many_puts_race_with_deletes() {
    race_puts_with_deletes(ROUNDS, long::seed()).await;
}

async fn race_puts_with_deletes(rounds: usize, seed: u64) {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let first = (seed % 100_000) as usize;
    for round in first..first + rounds {
        let me = server.me();
        let grant = me.init("cargo", BYTES.len() as u64).await.expect(201);
        let path = format!("/api/v2/files/{}", grant["fileId"].as_str().expect("an id"));
        let put = async {
            delay(round * 31).await;
            server.put_bytes(&grant, BYTES).await
        };
        let delete = async {
            delay(round * 127).await;
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
