//! Injects every fault into each external call of every operation: the call fails, its answer is lost, or the process
//! crashes before or after it. Then a new or another server runs the sweeps, and `oracle` checks that the state is
//! correct.

mod batch_states;
mod in_parts;
mod keys;
mod pipeline;
mod quarantine;
mod requests;

use std::collections::BTreeSet;

use serde_json::json;
use wharfinger::core::Role;
use wharfinger::sweeps::Sweep;
use wharfinger_calls::faults::{Fault, Faults};

use crate::hooks::{WITH_SECRET, report, s3_event};
use crate::notify::receiver::Receiver;
use crate::notify::telling;
use crate::test_app::{Answer, Database, TestApp, TestEnv};
use crate::{batches, oracle};
use batch_states::check_batch;
use requests::{POLICY, init_with_key, on_this_server, open_batch, run_sweep};

const BYTES: &[u8] = b"forty-two bytes of cargo, give or take one";
const DAY_MS: i64 = 86_400_000;
/// More calls than any operation makes. More show an endless loop.
const CALLS_MAX: u64 = 200;

/// The operation under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Init,
    InitWithKey,
    Put,
    Confirm,
    ConfirmWithChecksum,
    Reissue,
    Download,
    DeleteRegistered,
    DeleteReady,
    /// By the delayed check. If that fails, by the sweep.
    Reclaim,
    Sweep,
    RunCleanups,
    RemoveTombstone,
    OpenBatch,
    CompleteBatch,
    CancelBatch,
    ExpireBatch,
    Deliver,
    /// All stages of a confirmed file.
    Process,
    /// A call of an outside worker.
    CompleteJob,
    /// A call of an outside worker.
    Lease,
    /// A stuck file of a lost worker, requeued by the sweep.
    Recover,
    /// The same by a manual retry.
    Retry,
    /// A service key is created, used, and its use is written.
    UseKey,
    SetPolicy,
    /// The store reports the object.
    Report,
    /// An operator releases a quarantined file.
    Release,
}

/// The state before the fault.
struct Setup {
    id: String,
    grant: serde_json::Value,
    /// The batch, or the message of the store.
    batch: serde_json::Value,
}

/// The time limit of a batch, shorter than the time that `repair` simulates.
const BATCH_MS: i64 = 2 * 3_600_000;

fn env(database: Database) -> TestEnv {
    TestEnv::with(database, &[("BATCH_TIMEOUT_MS", "7200000")])
}

/// Creates a batch of two uploaded files, and of a third one that is not uploaded if the batch expires. Confirms the first,
/// unless the operation completes the batch.
async fn prepare_batch(operation: Op, env: &TestEnv, server: &TestApp) -> Setup {
    let me = server.me();
    let files = if operation == Op::ExpireBatch { 3 } else { 2 };
    let batch = batches::open(&me, &vec![BYTES.len(); files]).await;
    for grant in batch["files"].as_array().expect("files").iter().take(2) {
        server.put_bytes(grant, BYTES).await.expect(200);
    }
    let grant = batch["files"][0].clone();
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    if operation != Op::CompleteBatch {
        me.confirm(&id).await.expect(200);
    }
    if operation == Op::ExpireBatch {
        // The batch has expired, but the window of its files has not.
        env.advance(BATCH_MS + 1_000);
    }
    Setup { id, grant, batch }
}

impl Op {
    /// Brings a file to the state in which the operation applies.
    async fn prepare(self, env: &TestEnv, server: &TestApp) -> Option<Setup> {
        let me = server.me();
        if matches!(self, Op::Init | Op::InitWithKey | Op::OpenBatch | Op::UseKey | Op::SetPolicy) {
            return None;
        }
        if matches!(self, Op::CompleteBatch | Op::CancelBatch | Op::ExpireBatch) {
            return Some(prepare_batch(self, env, server).await);
        }
        let grant = me.init("cargo", BYTES.len() as u64).await.expect(201);
        let id = grant["fileId"].as_str().expect("an id").to_owned();
        if self != Op::Put {
            server.put_bytes(&grant, BYTES).await.expect(200);
        }
        if matches!(
            self,
            Op::Download
                | Op::DeleteReady
                | Op::Deliver
                | Op::Process
                | Op::CompleteJob
                | Op::Lease
                | Op::Recover
                | Op::Retry
                | Op::Release
        ) {
            me.confirm(&id).await.expect(200);
        }
        if self == Op::Release {
            quarantine::infect(server).await;
        }
        if matches!(self, Op::RunCleanups | Op::RemoveTombstone) {
            me.delete(&format!("/api/v2/files/{id}")).await.expect(204);
        }
        if self == Op::RemoveTombstone {
            server.settle().await;
            env.advance(31 * DAY_MS);
        }
        if matches!(self, Op::Reclaim | Op::Sweep) {
            env.advance(2 * 3_600_000);
        }
        if matches!(self, Op::CompleteJob | Op::Recover | Op::Retry) {
            let worker = server.as_user("ops", "w", Role::Worker);
            let leased =
                worker.post("/api/v2/workers/lease", json!({ "stages": ["extract"] })).await.expect(200);
            if self != Op::CompleteJob {
                env.advance(server.app.core.plan.stuck_after_ms);
            }
            return Some(Setup { id, grant: leased["jobs"][0].clone(), batch: serde_json::Value::Null });
        }
        let batch = match self {
            Op::Report => s3_event(env, &format!("wharf/uploads/t/u/{id}")),
            _ => serde_json::Value::Null,
        };
        Some(Setup { id, grant, batch })
    }

    /// Runs the operation once. Its result may be an error.
    async fn run(self, server: &TestApp, setup: Option<&Setup>, key: &str) -> Option<Answer> {
        let me = server.me();
        let path = setup.map(|setup| format!("/api/v2/files/{}", setup.id)).unwrap_or_default();
        match (self, setup) {
            (Op::Init, _) => Some(me.init("cargo", BYTES.len() as u64).await),
            (Op::InitWithKey, _) => Some(init_with_key(server, key).await),
            (Op::UseKey, _) => Some(keys::use_new_key(server, key).await),
            (Op::Put, Some(setup)) => {
                let grant = on_this_server(&setup.grant, server);
                Some(server.put_bytes(&grant, BYTES).await)
            }
            (Op::Confirm, _) => Some(me.post(&format!("{path}/confirm"), serde_json::json!({})).await),
            (Op::ConfirmWithChecksum, _) => {
                let sum = "2f9d1cd7a3a4b5a6bd2ab2d4bbef3dbf1c4b0dfba0c8d4b4a6f9a6bb4e1b2c3d";
                Some(me.post(&format!("{path}/confirm"), serde_json::json!({ "checksumSha256": sum })).await)
            }
            (Op::Reissue, _) => Some(me.post(&format!("{path}/url"), serde_json::json!({})).await),
            (Op::Download, _) => Some(me.get(&format!("{path}/download")).await),
            (Op::DeleteRegistered | Op::DeleteReady, _) => Some(me.delete(&path).await),
            (Op::SetPolicy, _) => {
                Some(server.operator().put(POLICY, json!({ "allowedTypes": [format!("x/{key}")] })).await)
            }
            (Op::Report, Some(setup)) => Some(report(server, &setup.batch).await),
            (Op::Release, Some(setup)) => Some(quarantine::release(server, &setup.id).await),
            (Op::OpenBatch, _) => Some(open_batch(server, key).await),
            (Op::CompleteBatch, Some(setup)) => Some(batches::complete(&me, &setup.batch).await),
            (Op::CancelBatch, Some(setup)) => Some(batches::cancel(&me, &setup.batch).await),
            // A sweep with an injected fault may fail. The next one continues.
            (Op::Reclaim, _) => {
                let stop = tokio_util::sync::CancellationToken::new();
                let _ = wharfinger::checks::run_due(&server.app.uploads, &stop).await;
                run_sweep(server, Sweep::UploadWindow).await
            }
            (Op::Sweep | Op::RemoveTombstone, _) => run_sweep(server, Sweep::UploadWindow).await,
            (Op::RunCleanups, _) => run_sweep(server, Sweep::PendingCleanups).await,
            (Op::ExpireBatch, _) => run_sweep(server, Sweep::BatchTimeout).await,
            (Op::Recover, _) => run_sweep(server, Sweep::StuckFiles).await,
            (Op::Retry, Some(setup)) => {
                Some(me.post(&format!("/api/v2/uploads/stuck/{}/retry", setup.id), json!({})).await)
            }
            (Op::Process, _) => {
                let _ = wharfinger::pipeline::run::run_due(&server.app.pipeline).await;
                None
            }
            (Op::CompleteJob, Some(setup)) => {
                let worker = server.as_user("ops", "w", Role::Worker);
                let path = format!("/api/v2/workers/jobs/{}/complete", setup.grant["jobId"].as_str()?);
                let output = json!({ "text": "forty-two bytes of cargo" });
                Some(
                    worker
                        .post(&path, json!({ "leaseToken": setup.grant["leaseToken"], "output": output }))
                        .await,
                )
            }
            (Op::Lease, _) => {
                let worker = server.as_user("ops", "w", Role::Worker);
                Some(
                    worker
                        .post("/api/v2/workers/lease", json!({ "stages": ["chunk", "extract"], "max": 5 }))
                        .await,
                )
            }
            (Op::Deliver, _) => {
                let stop = tokio_util::sync::CancellationToken::new();
                let _ = wharfinger::notify::relay(&server.app.notifier, &stop).await;
                None
            }
            (
                Op::Put
                | Op::Report
                | Op::Release
                | Op::CompleteBatch
                | Op::CancelBatch
                | Op::CompleteJob
                | Op::Retry,
                None,
            ) => None,
        }
    }
}

/// A server without faults: the one of the last round, or a new one.
async fn server_on(env: &TestEnv, running: &mut Option<TestApp>) -> TestApp {
    match running.take() {
        Some(server) => server,
        None => env.start().await,
    }
}

/// Hits each call between transactions and each call to another server with every fault that has a different effect
/// there. The conformance suite of `wharfinger-catalog` (`faults`) hits the statements inside a transaction.
async fn hit_every_call(operation: Op, env: &TestEnv) {
    let mut running = None;
    let first = hit(operation, env, Fault::CrashBefore, 1, &mut running).await;
    assert!(first.is_some(), "{operation:?} makes no call");
    let mut n = 1;
    while let Some(call) = hit(operation, env, Fault::Fail, n, &mut running).await {
        for fault in Fault::distinct_at(call).iter().filter(|fault| **fault != Fault::Fail) {
            hit(operation, env, *fault, n, &mut running).await;
        }
        n += 1;
    }
}

/// Returns the name of the call that was hit, or None if the operation made fewer calls.
async fn hit(
    operation: Op,
    env: &TestEnv,
    fault: Fault,
    n: u64,
    running: &mut Option<TestApp>,
) -> Option<&'static str> {
    assert!(n < CALLS_MAX, "{operation:?} makes too many calls");
    let prepared = server_on(env, running).await;
    let setup = operation.prepare(env, &prepared).await;
    if env.is_embedded() {
        prepared.crash().await;
    } else {
        // Another server survives the crash. It has no state in memory that could hide a fault.
        *running = Some(prepared);
    }

    let faults = Faults::at_ignoring_statements(n, fault);
    let server = env.start_with(faults.clone()).await;
    let key = format!("key-{fault:?}-{n}");
    let answer = operation.run(&server, setup.as_ref(), &key).await;
    let call = faults.hit();
    server.crash().await;

    let server = server_on(env, running).await;
    oracle::catalog_is_sound(&server).await;
    check_acknowledged(operation, &server, setup.as_ref(), answer.as_ref(), &key).await;
    repair(env, &server).await;
    let moment = format!("{operation:?}, {fault:?} at call {n}, {}", call.unwrap_or("after the last call"));
    oracle::all_is_healed_at(env, &server, &moment).await;
    check_final_state(operation, &server, setup.as_ref(), answer.as_ref()).await;
    *running = Some(server);
    call
}

/// An acknowledged operation is visible at once. Any other can be repeated.
async fn check_acknowledged(
    operation: Op,
    server: &TestApp,
    setup: Option<&Setup>,
    answer: Option<&Answer>,
    key: &str,
) {
    let me = server.me();
    let acknowledged = answer.is_some_and(|answer| answer.status.is_success());
    match (operation, setup) {
        (Op::InitWithKey, _) => {
            // I18: the key leads to one file, whether or not the first request succeeded.
            let first = init_with_key(server, key).await.expect(201);
            let second = init_with_key(server, key).await.expect(201);
            assert_eq!(first["fileId"], second["fileId"]);
            if let (true, Some(answer)) = (acknowledged, answer) {
                assert_eq!(answer.body["fileId"], first["fileId"]);
            }
        }
        (Op::UseKey, _) => keys::still_works(server, key, acknowledged).await,
        (Op::Release, Some(setup)) => quarantine::check_released(server, &setup.id, acknowledged).await,
        (Op::OpenBatch, _) => {
            let first = open_batch(server, key).await.expect(201);
            let second = open_batch(server, key).await.expect(201);
            assert_eq!(batches::each(&first, "fileId"), batches::each(&second, "fileId"));
            if let (true, Some(answer)) = (acknowledged, answer) {
                assert_eq!(batches::each(&answer.body, "fileId"), batches::each(&first, "fileId"));
            }
        }
        (Op::SetPolicy, _) if acknowledged => {
            let policy = server.operator().get(POLICY).await.expect(200);
            assert_eq!(policy["allowedTypes"][0], format!("x/{key}").to_lowercase());
        }
        (Op::CompleteBatch, Some(setup)) => {
            let completed = batches::complete(&me, &setup.batch).await.expect(200);
            assert_eq!(batches::each(&completed, "status"), ["ready"; 2]);
        }
        (Op::CancelBatch, Some(setup)) if acknowledged => {
            me.confirm(batches::each(&setup.batch, "fileId")[1]).await.expect_problem(410, "gone");
        }
        (Op::Confirm, Some(setup)) => {
            assert_eq!(me.confirm(&setup.id).await.expect(200)["status"], "ready");
        }
        (Op::Report, Some(setup)) => {
            // The store sends the message again until it is acknowledged.
            if !acknowledged {
                report(server, &setup.batch).await.expect(200);
            }
            assert_eq!(me.file(&setup.id).await["status"], "ready");
        }
        (Op::DeleteRegistered | Op::DeleteReady, Some(setup)) if acknowledged => {
            me.get(&format!("/api/v2/files/{}", setup.id)).await.expect_problem(404, "not_found");
        }
        (Op::Put, Some(setup)) if acknowledged => {
            assert_eq!(me.confirm(&setup.id).await.expect(200)["status"], "ready");
        }
        _ => {}
    }
}

/// A confirmed file is never reclaimed (I4), and a deleted file stays deleted.
async fn check_final_state(operation: Op, server: &TestApp, setup: Option<&Setup>, answer: Option<&Answer>) {
    let Some(setup) = setup else { return };
    let file = server.me().get(&format!("/api/v2/files/{}", setup.id)).await;
    let acknowledged = answer.is_some_and(|answer| answer.status.is_success());
    match operation {
        Op::Release => quarantine::check_released_once(server, &setup.id).await,
        Op::CompleteBatch | Op::CancelBatch | Op::ExpireBatch => {
            assert_eq!(file.expect(200)["status"], "ready");
            check_batch(operation, server, setup, acknowledged).await;
        }
        Op::Process | Op::CompleteJob | Op::Lease | Op::Recover | Op::Retry => {
            let file = file.expect(200);
            assert_eq!(file["status"], "ready");
            if acknowledged && operation == Op::Retry {
                assert_eq!(file["retryCount"], 1);
            }
            pipeline::check_processed_once(server, setup).await;
        }
        Op::Confirm | Op::Download | Op::Deliver | Op::Report => {
            assert_eq!(file.expect(200)["status"], "ready")
        }
        Op::Put if acknowledged => assert_eq!(file.expect(200)["status"], "ready"),
        Op::Reclaim | Op::Sweep => drop(file.expect_problem(410, "gone")),
        Op::DeleteReady | Op::DeleteRegistered if acknowledged => {
            drop(file.expect_problem(404, "not_found"));
        }
        _ => {}
    }
    if matches!(operation, Op::Reclaim | Op::Sweep) {
        // I14: one notification for any number of attempts.
        let notifications = server.me().get("/api/v2/notifications?limit=1000").await.expect(200);
        let notifications = notifications["notifications"].as_array().expect("a list");
        let about = notifications.iter().filter(|n| n["fileId"] == setup.id.as_str()).count();
        assert_eq!(about, 1);
    }
}

/// Advances past every window, retry delay, and grace period of temporary files.
async fn repair(env: &TestEnv, server: &TestApp) {
    if env.is_local() {
        env.age_incoming_uploads();
    }
    for _ in 0..3 {
        server.settle().await;
        env.advance(2 * 3_600_000);
    }
    server.settle().await;
    server.scan_orphans().await;
}

/// The webhook gets every notification of the catalog, with the same ids, at every fault.
async fn deliver_at_every_call(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    hit_every_call(Op::Deliver, &env).await;
    let notifications: BTreeSet<String> =
        env.texts("SELECT id FROM notifications").await.into_iter().collect();
    assert_eq!(receiver.distinct(), notifications);
    assert!(
        notifications.len() > 4 && receiver.taken().len() > notifications.len(),
        "some were delivered twice"
    );
    assert_eq!(env.scalar("SELECT COUNT(*) FROM outbox").await, 0);
}

macro_rules! every_operation {
    ($($name:ident: $operation:ident),* $(,)?) => {
        mod sqlite {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                hit_every_call(Op::$operation, &env(Database::Sqlite)).await;
            })*
        }
        mod postgres {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                hit_every_call(Op::$operation, &env(Database::Postgres)).await;
            })*
        }
    };
}

/// On S3 the calls to the store can fail too.
macro_rules! every_operation_on_s3 {
    ($($name:ident: $operation:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            hit_every_call(Op::$operation, &TestEnv::on_s3(Database::Sqlite, &[WITH_SECRET])).await;
        })*
    };
}

/// With Redis quotas the calls to Redis can fail too, and its counters must be correct at the end.
mod redis {
    use super::*;

    macro_rules! every_operation_with_redis {
        ($($name:ident: $operation:ident),* $(,)?) => {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let redis = harness::redis::shared().own_database();
                let short = [("BATCH_TIMEOUT_MS", "7200000")];
                hit_every_call(Op::$operation, &TestEnv::with_redis(Database::Postgres, &redis, &short)).await;
            })*
        };
    }

    every_operation_with_redis! {
        init: Init,
        init_with_key: InitWithKey,
        delete_registered: DeleteRegistered,
        delete_ready: DeleteReady,
        reclaim: Reclaim,
        sweep: Sweep,
        confirm: Confirm,
        open_batch: OpenBatch,
        cancel_batch: CancelBatch,
    }
}

mod s3 {
    use super::*;

    every_operation_on_s3! {
        report: Report,
        confirm: Confirm,
        delete_ready: DeleteReady,
        run_cleanups: RunCleanups,
    }
}

every_operation! {
    init: Init,
    init_with_key: InitWithKey,
    put: Put,
    confirm: Confirm,
    confirm_with_a_wrong_checksum: ConfirmWithChecksum,
    reissue: Reissue,
    download: Download,
    delete_registered: DeleteRegistered,
    delete_ready: DeleteReady,
    reclaim: Reclaim,
    sweep: Sweep,
    run_cleanups: RunCleanups,
    remove_tombstone: RemoveTombstone,
    open_batch: OpenBatch,
    complete_batch: CompleteBatch,
    cancel_batch: CancelBatch,
    expire_batch: ExpireBatch,
    use_key: UseKey,
    set_policy: SetPolicy,
}

#[tokio::test(flavor = "multi_thread")]
async fn deliver_on_sqlite() {
    deliver_at_every_call(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliver_on_postgres() {
    deliver_at_every_call(Database::Postgres).await;
}
