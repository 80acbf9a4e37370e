//! The states in which batches may end.

use super::{Op, Setup, TestApp, batches};

/// A completed batch has all its files, an expired one those that were uploaded, a cancelled one only the confirmed one. An
/// expired batch has one notification (I14).
pub async fn check_batch(operation: Op, server: &TestApp, setup: &Setup, acknowledged: bool) {
    let me = server.me();
    let batch = me.get(&batches::path(&setup.batch)).await.expect(200);
    let status = batch["status"].as_str().expect("a status");
    match operation {
        Op::CompleteBatch => assert_eq!(status, "completed"),
        Op::CancelBatch if acknowledged => assert_eq!(status, "cancelled"),
        Op::ExpireBatch => assert_eq!(status, "expired"),
        _ => assert!(status == "cancelled" || status == "expired", "{status}"),
    }
    let second = if status == "cancelled" { "deleted" } else { "ready" };
    assert_eq!(batches::each(&batch, "status")[..2], ["ready", second]);
    assert!(batches::each(&batch, "status")[2..].iter().all(|third| *third == "deleted"));
    let notifications = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    let notifications = notifications["notifications"].as_array().expect("a list");
    let about =
        notifications.iter().filter(|n| n["kind"] == "batch-expired" && n["batchId"] == batch["batchId"]);
    assert_eq!(about.count(), usize::from(status == "expired"));
}
