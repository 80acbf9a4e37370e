//! An upload that is not confirmed in its window is reclaimed once: its bytes and charge are released, its owner
//! notified.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{GRACE_MS, WINDOW_MS, id, object_of, plant};
use crate::oracle;
use crate::test_app::{Client, Database, TestEnv, on_each_database};
use wharfinger::sweeps::{SweepLease, upload_window};
use wharfinger::worker::Supervisor;
use wharfinger_lifecycle::checksum::to_hex;

/// The caller's notifications about reclaimed files.
async fn reclaim_notifications(me: &Client<'_>) -> Vec<Value> {
    let list = me.get("/api/v2/notifications").await.expect(200);
    assert!(list["nextCursor"].is_null());
    let mut notifications = list["notifications"].as_array().expect("a list").clone();
    notifications.retain(|one| one["kind"] != "file-ready");
    notifications
}

async fn status(me: &Client<'_>, grant: &Value) -> String {
    let answer = me.get(&format!("/api/v2/files/{}", id(grant))).await;
    match answer.status.as_u16() {
        200 => answer.body["status"].as_str().expect("a text").to_owned(),
        _ => answer.code().to_owned(),
    }
}

async fn cleanups(operator: &Client<'_>) -> u64 {
    let status = operator.get("/api/v1/maintenance/cleanup/status").await.expect(200);
    status["pending"].as_u64().expect("a number")
}

async fn an_unconfirmed_upload_is_reclaimed_once(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let sent = me.init("sent", 7).await.expect(201);
    server.put_bytes(&sent, b"seven!!").await.expect(200);
    let never_sent = me.init("never sent", 100).await.expect(201);
    assert_eq!(me.used().await, 107);

    env.advance(WINDOW_MS + GRACE_MS - 1);
    server.settle().await;
    assert_eq!(status(&me, &sent).await, "registered");
    assert_eq!(status(&me, &never_sent).await, "registered");
    assert_eq!((me.used().await, reclaim_notifications(&me).await.len()), (107, 0));
    assert!(object_of(&env, &id(&sent)).exists());

    env.advance(1);
    for _ in 0..3 {
        server.settle().await;
        assert_eq!(status(&me, &sent).await, "gone");
        assert_eq!(status(&me, &never_sent).await, "gone");
        let quota = me.get("/api/v2/quota").await.expect(200);
        assert_eq!((&quota["used"], &quota["reserved"]), (&json!(0), &json!(0)));
        assert!(oracle::files_below(&env.blob_dir()).is_empty());
        let mut notifications = reclaim_notifications(&me).await;
        notifications.sort_by_key(|notification| notification["data"]["sizeReclaimed"].as_u64());
        assert_eq!(notifications.len(), 2);
        for (notification, (grant, name, size)) in
            notifications.iter().zip([(&sent, "sent", 7), (&never_sent, "never sent", 100)])
        {
            assert_eq!(notification["kind"], "file-cleaned-up");
            assert_eq!(notification["fileId"], id(grant).as_str());
            assert_eq!(notification["fileName"], name);
            assert_eq!(notification["batchId"], Value::Null);
            assert_eq!(notification["createdAt"], "2025-06-15T16:07:40.000Z");
            assert_eq!(
                notification["data"],
                json!({ "reason": "not confirmed in time", "sizeReclaimed": size })
            );
        }
        env.advance(WINDOW_MS);
    }
    let history = me.get(&format!("/api/v2/files/{}/history", id(&sent))).await.expect(200);
    let events = history["events"].as_array().expect("a list");
    assert_eq!(events.len(), 2);
    assert_eq!((&events[1]["from"], &events[1]["to"]), (&json!("registered"), &json!("deleted")));
    assert_eq!(events[1]["reason"], "not confirmed in time");
    for grant in [&sent, &never_sent] {
        let path = format!("/api/v2/files/{}", id(grant));
        me.post(&format!("{path}/url"), json!({})).await.expect_problem(410, "gone");
        me.get(&format!("{path}/download")).await.expect_problem(410, "gone");
        me.delete(&path).await.expect_problem(410, "gone");
    }
    assert_eq!(me.get("/api/v2/files").await.expect(200)["files"], json!([]));
    oracle::all_is_healed(&env, &server).await;
}

async fn the_grace_period_grows_with_the_size(database: Database) {
    let env = TestEnv::with(database, &[("UPLOAD_MIN_RATE_BYTES", "10")]);
    let server = env.start().await;
    let me = server.me();
    let small = me.init("small", 600).await.expect(201);
    let large = me.init("large", 1_000).await.expect(201);
    env.advance(WINDOW_MS + 60_000);
    server.settle().await;
    assert_eq!(status(&me, &small).await, "gone");
    assert_eq!(status(&me, &large).await, "registered");
    env.advance(39_999);
    server.settle().await;
    assert_eq!(status(&me, &large).await, "registered");
    env.advance(1);
    server.settle().await;
    assert_eq!(status(&me, &large).await, "gone");
    oracle::all_is_healed(&env, &server).await;
}

async fn a_fresh_url_extends_the_window(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let first = me.init("slow", 3).await.expect(201);
    let forgotten = me.init("forgotten", 5).await.expect(201);
    env.advance(WINDOW_MS / 2);
    let fresh = me.post(&format!("/api/v2/files/{}/url", id(&first)), json!({})).await.expect(200);
    assert_eq!((id(&fresh), &fresh["status"]), (id(&first), &json!("registered")));
    assert_eq!(fresh["expiresAt"], "2025-06-15T16:36:40.000Z");
    assert_ne!(fresh["uploadUrl"], first["uploadUrl"]);

    env.advance(WINDOW_MS / 2 + GRACE_MS);
    server.settle().await;
    assert_eq!(status(&me, &forgotten).await, "gone");
    assert_eq!(status(&me, &first).await, "registered");
    assert_eq!(me.used().await, 3);
    server.put_bytes(&first, b"abc").await.expect_problem(403, "url_expired");
    server.put_bytes(&fresh, b"abc").await.expect(200);

    env.advance(WINDOW_MS / 2 - 1);
    server.settle().await;
    assert_eq!(status(&me, &first).await, "registered");
    env.advance(1);
    server.settle().await;
    assert_eq!(status(&me, &first).await, "gone");
    oracle::all_is_healed(&env, &server).await;
    assert!(oracle::files_below(&env.blob_dir()).is_empty());
}

async fn an_upload_continues_with_a_fresh_url_after_the_old_one_expired(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let first = me.init("slow", 3).await.expect(201);
    env.advance(WINDOW_MS + GRACE_MS - 1);
    let fresh = me.post(&format!("/api/v2/files/{}/url", id(&first)), json!({})).await.expect(200);
    env.advance(1);
    server.settle().await;
    server.put_bytes(&fresh, b"abc").await.expect(200);
    assert_eq!(me.confirm(&id(&first)).await.expect(200)["status"], "ready");
    env.advance(10 * WINDOW_MS);
    server.settle().await;
    assert_eq!(status(&me, &first).await, "ready");
    oracle::all_is_healed(&env, &server).await;
}

async fn the_rescue_policy_confirms_correct_uploads(database: Database) {
    let env = TestEnv::with(database, &[("UPLOAD_WINDOW_POLICY", "rescue")]);
    let server = env.start().await;
    let me = server.me();
    let [right, absent, wrong] = [
        me.init("right", 3).await.expect(201),
        me.init("absent", 5).await.expect(201),
        me.init("wrong", 7).await.expect(201),
    ];
    server.put_bytes(&right, b"abc").await.expect(200);
    plant(&env, &id(&wrong), b"not seven");
    env.advance(WINDOW_MS + GRACE_MS);
    server.settle().await;
    assert_eq!(status(&me, &right).await, "ready");
    assert_eq!(status(&me, &absent).await, "gone");
    assert_eq!(status(&me, &wrong).await, "gone");
    let history = me.get(&format!("/api/v2/files/{}/history", id(&right))).await.expect(200);
    assert_eq!(history["events"][1]["reason"], "rescued: uploaded, but not confirmed by its client");
    assert_eq!(reclaim_notifications(&me).await.len(), 2, "a rescued file has no such notification");
    assert_eq!(me.used().await, 3);
    assert_eq!(
        me.confirm(&id(&right)).await.expect(200)["status"],
        "ready",
        "the client confirms later and gets the same result"
    );
    oracle::all_is_healed(&env, &server).await;
}

async fn two_servers_that_reclaim_together_refund_once(database: Database) {
    let env = TestEnv::new(database);
    let first = env.start().await;
    let second = env.start().await;
    let me = first.me();
    let kept = me.upload("kept", b"kept").await;
    for n in 0..20 {
        let grant = me.init(&format!("f{n}"), 9).await.expect(201);
        first.put_bytes(&grant, b"nine byte").await.expect(200);
    }
    env.advance(WINDOW_MS + GRACE_MS);
    futures::future::join(first.settle(), second.settle()).await;
    // Runs the cleanups that the first process had leased when the second looked for them.
    first.settle().await;
    assert_eq!(reclaim_notifications(&me).await.len(), 20);
    assert_eq!(me.used().await, 4);
    assert_eq!(me.get(&format!("/api/v2/files/{kept}")).await.expect(200)["status"], "ready");
    oracle::all_is_healed(&env, &second).await;
}

/// Once a year, so the scheduled sweep does not run in the test.
const NEVER: &str = "0 0 1 1 *";

async fn a_running_server_reclaims_uploads(database: Database) {
    is_reclaimed_in_the_background(&TestEnv::new(database), false).await;
}

/// The delayed checks and the cleanups need no schedule.
async fn delayed_checks_reclaim_uploads_without_a_schedule(database: Database) {
    let settings = [("UPLOAD_WINDOW_SCHEDULE", NEVER), ("CLEANUP_SWEEP_SCHEDULE", NEVER)];
    is_reclaimed_in_the_background(&TestEnv::with(database, &settings), false).await;
}

async fn the_sweep_reclaims_an_upload_whose_check_was_lost(database: Database) {
    let settings = [("UPLOAD_WINDOW_SCHEDULE", "* * * * * *"), ("CLEANUP_SWEEP_SCHEDULE", NEVER)];
    is_reclaimed_in_the_background(&TestEnv::with(database, &settings), true).await;
}

async fn is_reclaimed_in_the_background(env: &TestEnv, lose_the_check: bool) {
    let server = env.start().await;
    let me = server.me();
    let supervisor = Supervisor::start(&server.app).await;
    let grant = me.init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    if lose_the_check {
        env.execute("DELETE FROM jobs").await;
    }
    env.advance(WINDOW_MS + GRACE_MS);
    // The background loops run by themselves while this only reads.
    let reclaimed = async {
        let operator = server.operator();
        while status(&me, &grant).await != "gone" || cleanups(&operator).await > 0 {
            env.advance(10);
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), reclaimed)
        .await
        .expect("the upload is reclaimed");
    supervisor.stop().await;
    assert_eq!(reclaim_notifications(&me).await.len(), 1);
    oracle::all_is_healed(env, &server).await;
}

/// Reading a large object for its checksum takes long. It is read outside the sweep, and the file is rescued when the
/// checksum is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_rescue_does_not_block_the_others() {
    const LARGE: usize = 70 << 20;
    let settings = [("UPLOAD_WINDOW_POLICY", "rescue"), ("MULTIPART_THRESHOLD_BYTES", "5MiB")];
    let env = TestEnv::on_s3(Database::Sqlite, &settings);
    let server = env.start().await;
    let bytes = vec![7; LARGE];
    let sum = to_hex(&Sha256::digest(&bytes));
    let request = json!({ "fileName": "large", "size": LARGE, "checksumSha256": sum });
    let large = server.me().post("/api/v2/files/init", request).await.expect(201);
    assert!(large["multipart"].is_object(), "the store checks an upload in one part itself");
    server.put_bytes(&large, &bytes).await;
    let small = server.me().init("small", 5).await.expect(201);
    server.put_bytes(&small, b"bytes").await.expect(200);
    let status = async |grant: &Value| server.me().file(&id(grant)).await["status"].clone();
    env.advance(2 * 3_600_000);
    upload_window::run(&server.app.uploads, &SweepLease::unleased(&server.app.core)).await.expect("a sweep");
    assert_eq!(status(&small).await, "ready");
    assert_eq!(status(&large).await, "registered", "the checksum is not known yet");
    while server.app.uploads.checksums.reading() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    env.advance(61_000);
    upload_window::run(&server.app.uploads, &SweepLease::unleased(&server.app.core)).await.expect("a sweep");
    assert_eq!(status(&large).await, "ready");
}

/// An object is not missing because the store is unavailable when the window ends, so the upload waits.
async fn a_rescue_waits_until_the_store_is_available(database: Database) {
    let env = TestEnv::with(database, &[("UPLOAD_WINDOW_POLICY", "rescue")]);
    let server = env.start().await;
    let me = server.me();
    let grant = me.init("a", 3).await.expect(201);
    server.put_bytes(&grant, b"abc").await.expect(200);
    let disk = env.unmount_disk();
    env.advance(WINDOW_MS + GRACE_MS);
    let _ = wharfinger::worker::run_all_due(&server.app).await;
    assert_eq!(status(&me, &grant).await, "registered");
    disk.remount();
    env.advance(2 * GRACE_MS);
    server.settle().await;
    assert_eq!(status(&me, &grant).await, "ready");
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    an_unconfirmed_upload_is_reclaimed_once,
    the_grace_period_grows_with_the_size,
    a_fresh_url_extends_the_window,
    an_upload_continues_with_a_fresh_url_after_the_old_one_expired,
    the_rescue_policy_confirms_correct_uploads,
    two_servers_that_reclaim_together_refund_once,
    a_running_server_reclaims_uploads,
    delayed_checks_reclaim_uploads_without_a_schedule,
    the_sweep_reclaims_an_upload_whose_check_was_lost,
    a_rescue_waits_until_the_store_is_available,
);
