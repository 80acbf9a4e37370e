//! Every verb, every call that leaves the process, every way it can go wrong there: fail, lose the answer, or
//! die before or after it. Then everything is dropped, a new server starts on what is durable, or a neighbour goes on
//! with it, the healers run, and nothing that must never be seen is seen.

mod pipeline;

use std::collections::BTreeSet;

use serde_json::json;
use wharfinger::core::Role;
use wharfinger::sweeps::{self, Sweep, SweepLease};
use wharfinger_calls::faults::{Fault, Faults};

use crate::notify::receiver::Receiver;
use crate::notify::telling;
use crate::test_app::{Answer, Database, TestApp, TestEnv};
use crate::{batches, oracle};

const BYTES: &[u8] = b"forty-two bytes of cargo, give or take one";
const DAY_MS: i64 = 86_400_000;
/// Of a tenant without files.
const POLICY: &str = "/api/v2/tenants/nobody/policy";
/// More calls than any verb makes: a run that needs more has lost its way.
const CALLS_MAX: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Init,
    InitWithKey,
    Put,
    Confirm,
    ConfirmWithChecksum,
    Reissue,
    Download,
    DeleteRegistered,
    DeleteReady,
    /// By the delayed check, and by the sweep after that was lost.
    Reclaim,
    Sweep,
    Reap,
    Forget,
    OpenBatch,
    CompleteBatch,
    CancelBatch,
    ExpireBatch,
    Tell,
    /// All stages of a confirmed file.
    Process,
    /// What an outside worker brings.
    CompleteJob,
    /// What an outside worker asks for.
    Lease,
    /// A stuck file, whose worker did not come back, by the sweep and by a person.
    Recover,
    Retry,
    SetPolicy,
}

/// What a server was asked before the fault.
struct Scene {
    id: String,
    grant: serde_json::Value,
    batch: serde_json::Value,
}

/// So long may a batch stay open here: shorter than it takes to heal.
const BATCH_MS: i64 = 2 * 3_600_000;

fn env(database: Database) -> TestEnv {
    TestEnv::with(database, &[("BATCH_TIMEOUT_MS", "7200000")])
}

/// A batch of two files that are uploaded; of one that will not be completed the first is confirmed.
async fn prepare_batch(verb: Verb, env: &TestEnv, server: &TestApp) -> Scene {
    let me = server.me();
    let batch = batches::open(&me, &[BYTES.len(); 2]).await;
    for grant in batch["files"].as_array().expect("files") {
        server.put_bytes(grant, BYTES).await.expect(200);
    }
    let grant = batch["files"][0].clone();
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    if verb != Verb::CompleteBatch {
        me.confirm(&id).await.expect(200);
    }
    if verb == Verb::ExpireBatch {
        // Its files are not due by themselves yet.
        env.advance(BATCH_MS + 1_000);
    }
    Scene { id, grant, batch }
}

impl Verb {
    /// Brings a file to the state that the verb is for.
    async fn prepare(self, env: &TestEnv, server: &TestApp) -> Option<Scene> {
        let me = server.me();
        if matches!(self, Verb::Init | Verb::InitWithKey | Verb::OpenBatch | Verb::SetPolicy) {
            return None;
        }
        if matches!(self, Verb::CompleteBatch | Verb::CancelBatch | Verb::ExpireBatch) {
            return Some(prepare_batch(self, env, server).await);
        }
        let grant = me.init("cargo", BYTES.len() as u64).await.expect(201);
        let id = grant["fileId"].as_str().expect("an id").to_owned();
        if self != Verb::Put {
            server.put_bytes(&grant, BYTES).await.expect(200);
        }
        if matches!(
            self,
            Verb::Download
                | Verb::DeleteReady
                | Verb::Tell
                | Verb::Process
                | Verb::CompleteJob
                | Verb::Lease
                | Verb::Recover
                | Verb::Retry
        ) {
            me.confirm(&id).await.expect(200);
        }
        if matches!(self, Verb::Reap | Verb::Forget) {
            me.delete(&format!("/api/v2/files/{id}")).await.expect(204);
        }
        if self == Verb::Forget {
            server.settle().await;
            env.advance(31 * DAY_MS);
        }
        if matches!(self, Verb::Reclaim | Verb::Sweep) {
            env.advance(2 * 3_600_000);
        }
        if matches!(self, Verb::CompleteJob | Verb::Recover | Verb::Retry) {
            let worker = server.as_user("ops", "w", Role::Worker);
            let leased =
                worker.post("/api/v2/workers/lease", json!({ "stages": ["extract"] })).await.expect(200);
            if self != Verb::CompleteJob {
                env.advance(server.app.core.plan.stuck_after_ms);
            }
            return Some(Scene { id, grant: leased["jobs"][0].clone(), batch: serde_json::Value::Null });
        }
        Some(Scene { id, grant, batch: serde_json::Value::Null })
    }

    /// Does the verb once; what it answers may be anything.
    async fn act(self, server: &TestApp, scene: Option<&Scene>, key: &str) -> Option<Answer> {
        let me = server.me();
        let path = scene.map(|scene| format!("/api/v2/files/{}", scene.id)).unwrap_or_default();
        match (self, scene) {
            (Verb::Init, _) => Some(me.init("cargo", BYTES.len() as u64).await),
            (Verb::InitWithKey, _) => Some(init_with_key(server, key).await),
            (Verb::Put, Some(scene)) => {
                let grant = here(&scene.grant, server);
                Some(server.put_bytes(&grant, BYTES).await)
            }
            (Verb::Confirm, _) => Some(me.post(&format!("{path}/confirm"), serde_json::json!({})).await),
            (Verb::ConfirmWithChecksum, _) => {
                let sum = "2f9d1cd7a3a4b5a6bd2ab2d4bbef3dbf1c4b0dfba0c8d4b4a6f9a6bb4e1b2c3d";
                Some(me.post(&format!("{path}/confirm"), serde_json::json!({ "checksumSha256": sum })).await)
            }
            (Verb::Reissue, _) => Some(me.post(&format!("{path}/url"), serde_json::json!({})).await),
            (Verb::Download, _) => Some(me.get(&format!("{path}/download")).await),
            (Verb::DeleteRegistered | Verb::DeleteReady, _) => Some(me.delete(&path).await),
            (Verb::SetPolicy, _) => {
                Some(server.operator().put(POLICY, json!({ "allowedTypes": [format!("x/{key}")] })).await)
            }
            (Verb::OpenBatch, _) => Some(open_batch(server, key).await),
            (Verb::CompleteBatch, Some(scene)) => Some(batches::complete(&me, &scene.batch).await),
            (Verb::CancelBatch, Some(scene)) => Some(batches::cancel(&me, &scene.batch).await),
            // A sweep that is hit may fail; the next one goes on.
            (Verb::Reclaim, _) => {
                let stop = tokio_util::sync::CancellationToken::new();
                let _ = wharfinger::checks::run_due(&server.app.uploads, &stop).await;
                run_sweep(server, Sweep::UploadWindow).await
            }
            (Verb::Sweep | Verb::Forget, _) => run_sweep(server, Sweep::UploadWindow).await,
            (Verb::Reap, _) => run_sweep(server, Sweep::PendingCleanups).await,
            (Verb::ExpireBatch, _) => run_sweep(server, Sweep::BatchTimeout).await,
            (Verb::Recover, _) => run_sweep(server, Sweep::StuckFiles).await,
            (Verb::Retry, Some(scene)) => {
                Some(me.post(&format!("/api/v2/uploads/stuck/{}/retry", scene.id), json!({})).await)
            }
            (Verb::Process, _) => {
                let _ = wharfinger::pipeline::run::run_due(&server.app.pipeline).await;
                None
            }
            (Verb::CompleteJob, Some(scene)) => {
                let worker = server.as_user("ops", "w", Role::Worker);
                let path = format!("/api/v2/workers/jobs/{}/complete", scene.grant["jobId"].as_str()?);
                let output = json!({ "text": "forty-two bytes of cargo" });
                Some(
                    worker
                        .post(&path, json!({ "leaseToken": scene.grant["leaseToken"], "output": output }))
                        .await,
                )
            }
            (Verb::Lease, _) => {
                let worker = server.as_user("ops", "w", Role::Worker);
                Some(
                    worker
                        .post("/api/v2/workers/lease", json!({ "stages": ["chunk", "extract"], "max": 5 }))
                        .await,
                )
            }
            (Verb::Tell, _) => {
                let stop = tokio_util::sync::CancellationToken::new();
                let _ = wharfinger::notify::relay(&server.app.notifier, &stop).await;
                None
            }
            (Verb::Put | Verb::CompleteBatch | Verb::CancelBatch | Verb::CompleteJob | Verb::Retry, None) => {
                None
            }
        }
    }
}

async fn run_sweep(server: &TestApp, sweep: Sweep) -> Option<Answer> {
    let _ = sweeps::run_unleased(&server.app.uploads, sweep, &SweepLease::unleased(&server.app.core)).await;
    None
}

/// A grant of an earlier server, whose port is another now.
fn here(grant: &serde_json::Value, server: &TestApp) -> serde_json::Value {
    let mut grant = grant.clone();
    let url = grant["uploadUrl"].as_str().expect("an upload URL");
    let path = url.split_once("/blobs/").expect("a local URL").1;
    grant["uploadUrl"] = format!("{}/blobs/{path}", server.url).into();
    grant
}

async fn open_batch(server: &TestApp, key: &str) -> Answer {
    batches::open_with_key(&server.me(), key, &batches::wanted(&[BYTES.len(); 2])).await
}

async fn init_with_key(server: &TestApp, key: &str) -> Answer {
    let me = server.me();
    let body = serde_json::json!({ "fileName": "cargo", "size": BYTES.len() });
    let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", key);
    me.send(request.json(&body)).await
}

/// A server that nothing happens to: the one that healed the last round, or a new one.
async fn server_on(env: &TestEnv, lasting: &mut Option<TestApp>) -> TestApp {
    match lasting.take() {
        Some(server) => server,
        None => env.start().await,
    }
}

/// Hits each call between transactions and to other servers with every fault that differs there. Statements inside a
/// transaction are hit one by one in the conformance suite of `wharfinger-catalog` (`faults`).
async fn hit_every_call(verb: Verb, env: &TestEnv) {
    let mut lasting = None;
    let first = hit(verb, env, Fault::CrashBefore, 1, &mut lasting).await;
    assert!(first.is_some(), "{verb:?} makes no call");
    let mut n = 1;
    while let Some(call) = hit(verb, env, Fault::Fail, n, &mut lasting).await {
        for fault in Fault::distinct_at(call).iter().filter(|fault| **fault != Fault::Fail) {
            hit(verb, env, *fault, n, &mut lasting).await;
        }
        n += 1;
    }
}

/// Answers which call was hit, if there was one with that number.
async fn hit(
    verb: Verb,
    env: &TestEnv,
    fault: Fault,
    n: u64,
    lasting: &mut Option<TestApp>,
) -> Option<&'static str> {
    assert!(n < CALLS_MAX, "{verb:?} makes no end of calls");
    let calm = server_on(env, lasting).await;
    let scene = verb.prepare(env, &calm).await;
    if env.is_embedded() {
        calm.crash().await;
    } else {
        // A neighbour of the one that dies: it keeps nothing that would not be read anew.
        *lasting = Some(calm);
    }

    let faults = Faults::at_ignoring_statements(n, fault);
    let server = env.start_with(faults.clone()).await;
    let key = format!("key-{fault:?}-{n}");
    let answer = verb.act(&server, scene.as_ref(), &key).await;
    let call = faults.hit();
    server.crash().await;

    let server = server_on(env, lasting).await;
    oracle::catalog_is_sound(&server).await;
    check_promises(verb, &server, scene.as_ref(), answer.as_ref(), &key).await;
    heal(env, &server).await;
    let where_ = format!("{verb:?}, {fault:?} at call {n}, {}", call.unwrap_or("which was not made"));
    oracle::all_is_healed_at(env, &server, &where_).await;
    keep_promises(verb, &server, scene.as_ref(), answer.as_ref()).await;
    *lasting = Some(server);
    call
}

/// What was acknowledged holds at once, and what was not can be asked for again.
async fn check_promises(
    verb: Verb,
    server: &TestApp,
    scene: Option<&Scene>,
    answer: Option<&Answer>,
    key: &str,
) {
    let me = server.me();
    let acknowledged = answer.is_some_and(|answer| answer.status.is_success());
    match (verb, scene) {
        (Verb::InitWithKey, _) => {
            // I18: whatever became of the first, the key leads to one file.
            let first = init_with_key(server, key).await.expect(201);
            let second = init_with_key(server, key).await.expect(201);
            assert_eq!(first["fileId"], second["fileId"]);
            if let (true, Some(answer)) = (acknowledged, answer) {
                assert_eq!(answer.body["fileId"], first["fileId"]);
            }
        }
        (Verb::OpenBatch, _) => {
            let first = open_batch(server, key).await.expect(201);
            let second = open_batch(server, key).await.expect(201);
            assert_eq!(batches::each(&first, "fileId"), batches::each(&second, "fileId"));
            if let (true, Some(answer)) = (acknowledged, answer) {
                assert_eq!(batches::each(&answer.body, "fileId"), batches::each(&first, "fileId"));
            }
        }
        (Verb::SetPolicy, _) if acknowledged => {
            let policy = server.operator().get(POLICY).await.expect(200);
            assert_eq!(policy["allowedTypes"][0], format!("x/{key}").to_lowercase());
        }
        (Verb::CompleteBatch, Some(scene)) => {
            let completed = batches::complete(&me, &scene.batch).await.expect(200);
            assert_eq!(batches::each(&completed, "status"), ["ready"; 2]);
        }
        (Verb::CancelBatch, Some(scene)) if acknowledged => {
            me.confirm(batches::each(&scene.batch, "fileId")[1]).await.expect_problem(410, "gone");
        }
        (Verb::Confirm, Some(scene)) => {
            assert_eq!(me.confirm(&scene.id).await.expect(200)["status"], "ready");
        }
        (Verb::DeleteRegistered | Verb::DeleteReady, Some(scene)) if acknowledged => {
            me.get(&format!("/api/v2/files/{}", scene.id)).await.expect_problem(404, "not_found");
        }
        (Verb::Put, Some(scene)) if acknowledged => {
            assert_eq!(me.confirm(&scene.id).await.expect(200)["status"], "ready");
        }
        _ => {}
    }
}

/// What was confirmed is never taken by a cleaner (I4); what was deleted stays so.
async fn keep_promises(verb: Verb, server: &TestApp, scene: Option<&Scene>, answer: Option<&Answer>) {
    let Some(scene) = scene else { return };
    let file = server.me().get(&format!("/api/v2/files/{}", scene.id)).await;
    let acknowledged = answer.is_some_and(|answer| answer.status.is_success());
    match verb {
        Verb::CompleteBatch | Verb::CancelBatch | Verb::ExpireBatch => {
            assert_eq!(file.expect(200)["status"], "ready");
            batch_has_ended(verb, server, scene, acknowledged).await;
        }
        Verb::Process | Verb::CompleteJob | Verb::Lease | Verb::Recover | Verb::Retry => {
            let file = file.expect(200);
            assert_eq!(file["status"], "ready");
            if acknowledged && verb == Verb::Retry {
                assert_eq!(file["retryCount"], 1);
            }
            was_processed_once(server, scene).await;
        }
        Verb::Confirm | Verb::Download | Verb::Tell => assert_eq!(file.expect(200)["status"], "ready"),
        Verb::Put if acknowledged => assert_eq!(file.expect(200)["status"], "ready"),
        Verb::Reclaim | Verb::Sweep => drop(file.expect_problem(410, "gone")),
        Verb::DeleteReady | Verb::DeleteRegistered if acknowledged => {
            drop(file.expect_problem(404, "not_found"));
        }
        _ => {}
    }
    if matches!(verb, Verb::Reclaim | Verb::Sweep) {
        // I14: told once, however often it was tried.
        let told = server.me().get("/api/v2/notifications?limit=1000").await.expect(200);
        let told = told["notifications"].as_array().expect("a list");
        let about = told.iter().filter(|n| n["fileId"] == scene.id.as_str()).count();
        assert_eq!(about, 1);
    }
}

/// However often it was tried: told once (I14), and its text is there once.
async fn was_processed_once(server: &TestApp, scene: &Scene) {
    let me = server.me();
    let told = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    let told = told["notifications"].as_array().expect("a list");
    let about: Vec<_> = told.iter().filter(|n| n["fileId"] == scene.id.as_str()).collect();
    assert_eq!(about.len(), 1, "{about:?}");
    assert_eq!(about[0]["kind"], "file-ready");
    let chunks = me.get(&format!("/api/v2/files/{}/chunks", scene.id)).await.expect(200);
    let texts: Vec<_> = chunks["chunks"].as_array().expect("a list").iter().map(|c| &c["text"]).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].as_str().expect("a text").starts_with("forty-two bytes of cargo"));
    // The next round has less to look through.
    me.delete(&format!("/api/v2/files/{}", scene.id)).await.expect(204);
}

/// A completed batch is whole; of another the rest is gone. Its owner is told once if its time was over (I14).
async fn batch_has_ended(verb: Verb, server: &TestApp, scene: &Scene, acknowledged: bool) {
    let me = server.me();
    let batch = me.get(&batches::path(&scene.batch)).await.expect(200);
    let status = batch["status"].as_str().expect("a status");
    match verb {
        Verb::CompleteBatch => assert_eq!(status, "completed"),
        Verb::CancelBatch if acknowledged => assert_eq!(status, "cancelled"),
        Verb::ExpireBatch => assert_eq!(status, "expired"),
        _ => assert!(status == "cancelled" || status == "expired", "{status}"),
    }
    let rest = if status == "completed" { "ready" } else { "deleted" };
    assert_eq!(batches::each(&batch, "status"), ["ready", rest]);
    let told = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    let told = told["notifications"].as_array().expect("a list");
    let about = told.iter().filter(|n| n["kind"] == "batch-expired" && n["batchId"] == batch["batchId"]);
    assert_eq!(about.count(), usize::from(status == "expired"));
}

/// Past every window and every pause between attempts, also for what crashed uploads left on disk.
async fn heal(env: &TestEnv, server: &TestApp) {
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

/// Whatever goes wrong on the way, the webhook hears of every file, and by the ids that the catalog knows.
async fn tell_at_every_call(database: Database) {
    let receiver = Receiver::start().await;
    let env = telling(database, &receiver.url);
    hit_every_call(Verb::Tell, &env).await;
    let told: BTreeSet<String> = env.texts("SELECT id FROM notifications").await.into_iter().collect();
    assert_eq!(receiver.distinct(), told);
    assert!(told.len() > 4 && receiver.taken().len() > told.len(), "some were told twice");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM outbox").await, 0);
}

macro_rules! every_verb {
    ($($name:ident: $verb:ident),* $(,)?) => {
        mod sqlite {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                hit_every_call(Verb::$verb, &env(Database::Sqlite)).await;
            })*
        }
        mod postgres {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                hit_every_call(Verb::$verb, &env(Database::Postgres)).await;
            })*
        }
    };
}

/// Where the store is another's: the calls to it can be hit too, and a large file has some more of them.
macro_rules! every_verb_on_s3 {
    ($settings:expr; $($name:ident: $verb:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            hit_every_call(Verb::$verb, &TestEnv::on_s3(Database::Sqlite, $settings)).await;
        })*
    };
}

/// Redis in front of the quotas: the calls to it can be hit too, and what it counts must be right in the end.
mod redis {
    use super::*;

    macro_rules! every_verb_with_redis {
        ($($name:ident: $verb:ident),* $(,)?) => {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let redis = harness::redis::shared().own_database();
                let short = [("BATCH_TIMEOUT_MS", "7200000")];
                hit_every_call(Verb::$verb, &TestEnv::with_redis(Database::Postgres, &redis, &short)).await;
            })*
        };
    }

    every_verb_with_redis! {
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

    every_verb_on_s3! {
        &[];
        confirm: Confirm,
        delete_ready: DeleteReady,
        reap: Reap,
    }
}

mod s3_in_parts {
    use super::*;

    /// Whatever has more than a byte is large, and what no file knows of is at once old enough to be ended.
    const IN_PARTS: [(&str, &str); 2] = [("MULTIPART_THRESHOLD_BYTES", "1"), ("ORPHAN_BLOB_GRACE_MS", "0")];

    every_verb_on_s3! {
        &IN_PARTS;
        init_with_key: InitWithKey,
        confirm: Confirm,
        reissue: Reissue,
        delete_registered: DeleteRegistered,
        reclaim: Reclaim,
        reap: Reap,
    }
}

every_verb! {
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
    reap: Reap,
    forget: Forget,
    open_batch: OpenBatch,
    complete_batch: CompleteBatch,
    cancel_batch: CancelBatch,
    expire_batch: ExpireBatch,
    set_policy: SetPolicy,
}

#[tokio::test(flavor = "multi_thread")]
async fn tell_on_sqlite() {
    tell_at_every_call(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tell_on_postgres() {
    tell_at_every_call(Database::Postgres).await;
}
