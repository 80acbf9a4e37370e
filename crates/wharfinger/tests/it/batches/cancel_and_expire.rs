//! Batches that are cancelled or expire: confirmed files stay, the others are reclaimed and release their quota.

use serde_json::{Value, json};
use wharfinger::sweeps::{SweepLease, expired_batches};

use super::{DAY_MS, cancel, complete, each, fill, open, path};
use crate::oracle;
use crate::test_app::{Client, Database, TestEnv, on_each_database};
use crate::uploads::WINDOW_MS;

/// The owner's notifications, without those about ready files.
async fn notifications(me: &Client<'_>) -> Vec<Value> {
    let answer = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    let all = answer["notifications"].as_array().expect("a list");
    all.iter().filter(|notification| notification["kind"] != "file-ready").cloned().collect()
}

async fn a_cancelled_batch_keeps_its_confirmed_files(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[1, 2, 4]).await;
    let ids = each(&batch, "fileId");
    fill(&server, &batch["files"][0], 1).await;
    fill(&server, &batch["files"][1], 2).await;
    me.confirm(ids[0]).await.expect(200);
    for _ in 0..2 {
        let cancelled = cancel(&me, &batch).await.expect(200);
        assert_eq!(cancelled["status"], "cancelled");
        assert_eq!(each(&cancelled, "uploadUrl"), [""; 3]);
    }
    // This applies at once, although the files are not reclaimed yet.
    me.confirm(ids[1]).await.expect_problem(410, "gone");
    me.post(&format!("/api/v2/files/{}/url", ids[2]), json!({})).await.expect_problem(410, "gone");
    complete(&me, &batch).await.expect_problem(410, "gone");
    let late = json!({ "fileName": "late", "size": 1, "batchId": batch["batchId"] });
    me.post("/api/v2/files/init", late).await.expect_problem(409, "batch_closed");
    assert_eq!(me.confirm(ids[0]).await.expect(200)["status"], "ready");

    server.settle().await;
    me.get(&format!("/api/v2/files/{}", ids[1])).await.expect_problem(410, "gone");
    let history = me.get(&format!("/api/v2/files/{}/history", ids[2])).await.expect(200);
    assert_eq!(history["events"][1]["reason"], "batch cancelled");
    assert_eq!(me.used().await, 1);
    assert_eq!(
        notifications(&me).await,
        Vec::<Value>::new(),
        "the owner gets no notification about the own cancel"
    );
    let seen = me.get(&path(&batch)).await.expect(200);
    assert_eq!(each(&seen, "status"), ["ready", "deleted", "deleted"]);
    oracle::all_is_healed(&env, &server).await;

    let done = open(&me, &[]).await;
    complete(&me, &done).await.expect(200);
    cancel(&me, &done).await.expect_problem(409, "batch_closed");
}

async fn an_overdue_batch_expires_and_keeps_its_confirmed_files(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[1, 2, 4, 8, 16]).await;
    let ids = each(&batch, "fileId");
    for (n, size) in [1, 2, 4].into_iter().enumerate() {
        fill(&server, &batch["files"][n], size).await;
    }
    me.confirm(ids[0]).await.expect(200);
    me.confirm(ids[1]).await.expect(200);
    env.advance(DAY_MS - 1);
    server.settle().await;
    assert_eq!(me.used().await, 31, "files of an active batch are not reclaimed");
    assert_eq!(me.get(&path(&batch)).await.expect(200)["status"], "active");

    env.advance(3_600_001);
    let outcome = expired_batches::run(&server.app.uploads, &SweepLease::unleased(&server.app.core))
        .await
        .expect("the sweep runs");
    assert_eq!(
        serde_json::to_value(outcome).expect("JSON"),
        json!({ "expiredBatches": 1, "deletedFiles": 2, "rescued": 1, "errors": 0,
            "averageBatchAge": DAY_MS + 3_600_000 })
    );
    let again = expired_batches::run(&server.app.uploads, &SweepLease::unleased(&server.app.core))
        .await
        .expect("the sweep runs");
    assert_eq!(again, expired_batches::Outcome::default());
    server.settle().await;
    let seen = me.get(&path(&batch)).await.expect(200);
    assert_eq!(seen["status"], "expired");
    assert_eq!(each(&seen, "status"), ["ready", "ready", "ready", "deleted", "deleted"]);
    assert_eq!(me.used().await, 7);
    let notifications = notifications(&me).await;
    assert_eq!(notifications.len(), 1, "{notifications:?}");
    assert_eq!(
        (&notifications[0]["kind"], &notifications[0]["batchId"]),
        (&json!("batch-expired"), &batch["batchId"])
    );
    assert_eq!(
        (&notifications[0]["data"]["confirmedFiles"], &notifications[0]["data"]["removedFiles"]),
        (&json!(3), &json!(2))
    );
    me.confirm(ids[2]).await.expect(200);
    me.confirm(ids[3]).await.expect_problem(410, "gone");
    complete(&me, &batch).await.expect_problem(410, "gone");
    oracle::all_is_healed(&env, &server).await;
}

/// The delayed checks may run before the sweep.
async fn delayed_checks_before_the_sweep_do_not_change_the_result(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[1, 2]).await;
    env.advance(DAY_MS + 3_600_000);
    let stop = tokio_util::sync::CancellationToken::new();
    assert_eq!(wharfinger::checks::run_due(&server.app.uploads, &stop).await.expect("checks"), 2);
    let incomplete = complete(&me, &batch).await.expect_problem(409, "batch_incomplete");
    assert_eq!(each(&incomplete, "code"), ["gone"; 2]);
    let outcome = expired_batches::run(&server.app.uploads, &SweepLease::unleased(&server.app.core))
        .await
        .expect("the sweep runs");
    assert_eq!((outcome.expired_batches, outcome.deleted_files), (1, 2));
    server.settle().await;
    assert_eq!(notifications(&me).await.len(), 1);
    oracle::all_is_healed(&env, &server).await;
}

async fn upload_urls_are_reissued_while_the_batch_is_active(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[3, 4]).await;
    let same = me.get(&path(&batch)).await.expect(200);
    assert_eq!(each(&same, "expiresAt"), each(&batch, "expiresAt"), "more than half of the window is left");
    env.advance(2 * WINDOW_MS);
    server.settle().await;
    assert_eq!(server.put_bytes(&batch["files"][0], b"abc").await.status, 403, "the URL has expired");
    let fresh = me.get(&path(&batch)).await.expect(200);
    assert_eq!(each(&fresh, "status"), ["registered"; 2]);
    assert!(each(&fresh, "expiresAt")[0] > each(&batch, "expiresAt")[0]);
    fill(&server, &fresh["files"][0], 3).await;
    // A single URL can be reissued, too. The check of the file stays at the end of the batch.
    env.advance(2 * WINDOW_MS);
    let one =
        me.post(&format!("/api/v2/files/{}/url", each(&batch, "fileId")[1]), json!({})).await.expect(200);
    env.advance(3 * WINDOW_MS);
    server.settle().await;
    assert_eq!(server.put_bytes(&one, b"abcd").await.status, 403);
    let of_batch = path(&batch);
    let many = (0..4).map(|_| me.get(&of_batch)).collect::<Vec<_>>();
    let fresh = futures::future::join_all(many).await.pop().expect("four").expect(200);
    fill(&server, &fresh["files"][1], 4).await;
    complete(&me, &batch).await.expect(200);
    env.advance(3 * DAY_MS);
    server.settle().await;
    assert_eq!(me.used().await, 7);
    assert_eq!(notifications(&me).await, Vec::<Value>::new());
    oracle::all_is_healed(&env, &server).await;
}

async fn files_of_an_expired_batch_are_rescued_but_not_of_a_cancelled_one(database: Database) {
    let env = TestEnv::with(database, &[("UPLOAD_WINDOW_POLICY", "rescue")]);
    let server = env.start().await;
    let me = server.me();
    let (cancelled, expired) = (open(&me, &[1]).await, open(&me, &[2, 3]).await);
    fill(&server, &cancelled["files"][0], 1).await;
    fill(&server, &expired["files"][0], 2).await;
    cancel(&me, &cancelled).await.expect(200);
    env.advance(DAY_MS);
    let outcome = expired_batches::run(&server.app.uploads, &SweepLease::unleased(&server.app.core))
        .await
        .expect("the sweep runs");
    assert_eq!((outcome.expired_batches, outcome.deleted_files), (1, 1));
    server.settle().await;
    assert_eq!(me.used().await, 2);
    oracle::all_is_healed(&env, &server).await;
}

/// Five files, two uploaded and not confirmed: two stay, three go. The notification counts them so.
async fn uploaded_files_of_an_expired_batch_stay(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[1, 2, 4, 8, 16]).await;
    fill(&server, &batch["files"][1], 2).await;
    fill(&server, &batch["files"][3], 8).await;
    env.advance(DAY_MS);
    let sweep = async || {
        let lease = SweepLease::unleased(&server.app.core);
        expired_batches::run(&server.app.uploads, &lease).await.expect("the sweep runs")
    };
    // While the store does not answer, it cannot say which files are uploaded, so the batch waits.
    let disk = env.unmount_disk();
    let waiting = sweep().await;
    assert_eq!((waiting.expired_batches, waiting.deleted_files, waiting.rescued), (0, 0, 0));
    assert_eq!(me.get(&path(&batch)).await.expect(200)["status"], "active");
    disk.remount();
    let dry_run = SweepLease::dry_run(&server.app.core);
    let seen = expired_batches::run(&server.app.uploads, &dry_run).await.expect("the sweep runs");
    assert_eq!((seen.expired_batches, seen.deleted_files, seen.rescued), (1, 3, 2));
    let outcome = sweep().await;
    assert_eq!((outcome.expired_batches, outcome.deleted_files, outcome.rescued), (1, 3, 2));
    assert_eq!(sweep().await, expired_batches::Outcome::default());
    server.settle().await;
    let seen = me.get(&path(&batch)).await.expect(200);
    assert_eq!(each(&seen, "status"), ["deleted", "ready", "deleted", "ready", "deleted"]);
    assert_eq!(me.used().await, 10);
    let notifications = notifications(&me).await;
    let data = &notifications[0]["data"];
    assert_eq!(notifications.len(), 1, "{notifications:?}");
    assert_eq!((&data["confirmedFiles"], &data["removedFiles"]), (&json!(2), &json!(3)));
    assert_eq!(data["sizeReclaimed"], 21);
    oracle::all_is_healed(&env, &server).await;
}

/// After a day the batch expires although the store is away. Its files still wait for the store.
async fn a_batch_does_not_wait_forever_for_the_store(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[1, 2]).await;
    fill(&server, &batch["files"][0], 1).await;
    let disk = env.unmount_disk();
    env.advance(2 * DAY_MS);
    let lease = SweepLease::unleased(&server.app.core);
    let outcome = expired_batches::run(&server.app.uploads, &lease).await.expect("the sweep runs");
    assert_eq!((outcome.expired_batches, outcome.deleted_files, outcome.rescued), (1, 0, 0));
    disk.remount();
    env.advance(3_600_000);
    server.settle().await;
    let seen = me.get(&path(&batch)).await.expect(200);
    assert_eq!(each(&seen, "status"), ["ready", "deleted"]);
    oracle::all_is_healed(&env, &server).await;
}

on_each_database!(
    uploaded_files_of_an_expired_batch_stay,
    a_batch_does_not_wait_forever_for_the_store,
    a_cancelled_batch_keeps_its_confirmed_files,
    an_overdue_batch_expires_and_keeps_its_confirmed_files,
    delayed_checks_before_the_sweep_do_not_change_the_result,
    upload_urls_are_reissued_while_the_batch_is_active,
    files_of_an_expired_batch_are_rescued_but_not_of_a_cancelled_one,
);
