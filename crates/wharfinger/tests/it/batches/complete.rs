//! A batch is opened, gets more files, and is completed.

use serde_json::json;

use super::{complete, each, fill, open, open_with_key, path, wanted};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};

async fn a_batch_is_opened_filled_and_completed(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let batch = open(&me, &[3, 0, 5]).await;
    assert_eq!(batch["status"], "active");
    assert_eq!(batch["expiresAt"], "2025-06-16T15:06:40.000Z");
    assert_eq!(each(&batch, "status"), ["registered"; 3]);
    assert_eq!(me.used().await, 8);
    for (grant, size) in batch["files"].as_array().expect("files").iter().zip([3, 0, 5]) {
        assert_eq!(grant["batchId"], batch["batchId"]);
        fill(&server, grant, size).await;
    }
    // `init` adds another file.
    let more = json!({ "fileName": "more", "size": 2, "batchId": batch["batchId"] });
    let more = me.post("/api/v2/files/init", more).await.expect(201);
    assert_eq!(more["batchId"], batch["batchId"]);

    let incomplete = complete(&me, &batch).await.expect_problem(409, "batch_incomplete");
    let by_id = |answer: &serde_json::Value, id: &serde_json::Value| {
        let files = answer["files"].as_array().expect("files");
        files.iter().find(|file| file["fileId"] == *id).expect("it is listed").clone()
    };
    assert_eq!(incomplete["files"].as_array().expect("files").len(), 4);
    let open_one = by_id(&incomplete, &more["fileId"]);
    assert_eq!((&open_one["status"], &open_one["code"]), (&json!("registered"), &json!("object_missing")));
    assert!(!open_one["detail"].is_null());
    let confirmed = by_id(&incomplete, &batch["files"][0]["fileId"]);
    assert_eq!(confirmed, json!({ "fileId": batch["files"][0]["fileId"], "status": "ready" }));
    let seen = me.get(&path(&batch)).await.expect(200);
    assert_eq!(seen["status"], "active");
    assert_eq!(by_id(&seen, &batch["files"][0]["fileId"])["status"], "ready");
    assert!(!by_id(&seen, &more["fileId"])["uploadUrl"].is_null());

    fill(&server, &more, 2).await;
    for _ in 0..2 {
        let done = complete(&me, &batch).await.expect(200);
        assert_eq!((&done["status"], &done["batchId"]), (&json!("completed"), &batch["batchId"]));
        assert_eq!(each(&done, "status"), ["ready"; 4]);
    }
    let seen = me.get(&path(&batch)).await.expect(200);
    assert_eq!(seen["status"], "completed");
    assert_eq!(each(&seen, "uploadUrl"), [""; 4]);
    let listed = me.get("/api/v2/files").await.expect(200);
    assert_eq!(each(&listed, "batchId"), [batch["batchId"].as_str().expect("an id"); 4]);
    let late = json!({ "fileName": "late", "size": 1, "batchId": batch["batchId"] });
    me.post("/api/v2/files/init", late).await.expect_problem(409, "batch_closed");
    assert_eq!(me.used().await, 10);
    oracle::all_is_healed(&env, &server).await;
}

async fn a_batch_is_refused_if_not_all_its_files_fit(database: Database) {
    let env = TestEnv::with(
        database,
        &[("DEFAULT_TENANT_QUOTA_BYTES", "100"), ("UNCONFIRMED_LIMIT_PERCENT", "90")],
    );
    let server = env.start().await;
    let me = server.me();
    let refused = me.post("/api/v2/batches", wanted(&[60, 41])).await.expect_problem(403, "quota_exceeded");
    assert_eq!(
        (&refused["used"], &refused["limit"], &refused["requested"]),
        (&json!(0), &json!(100), &json!(101))
    );
    let unconfirmed =
        me.post("/api/v2/batches", wanted(&[60, 31])).await.expect_problem(403, "unconfirmed_limit");
    assert_eq!(unconfirmed["requested"], 91);
    assert_eq!(me.used().await, 0);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM upload_batches").await, 0);
    open(&me, &[60, 30]).await;
    assert_eq!(me.used().await, 90);
    oracle::catalog_is_sound(&server).await;
}

async fn requests_with_one_key_open_one_batch(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let body = wanted(&[3, 4]);
    let (first, second) = tokio::join!(open_with_key(&me, "k", &body), open_with_key(&me, "k", &body));
    let (first, second) = (first.expect(201), second.expect(201));
    assert_eq!(first["batchId"], second["batchId"]);
    assert_eq!(each(&first, "fileId"), each(&second, "fileId"), "in the same order");
    open_with_key(&me, "k", &wanted(&[3])).await.expect_problem(422, "idempotency_mismatch");
    assert_eq!(me.used().await, 7);
    // The repeated answer has the current status of each file, in the same order.
    fill(&server, &first["files"][0], 3).await;
    me.confirm(each(&first, "fileId")[0]).await.expect(200);
    let again = open_with_key(&me, "k", &body).await.expect(201);
    assert_eq!(each(&again, "status"), ["ready", "registered"]);
    fill(&server, &again["files"][1], 4).await;
    complete(&me, &first).await.expect(200);
    assert_eq!(open_with_key(&me, "k", &body).await.expect(201)["status"], "completed");
    let cancelled = open_with_key(&me, "other", &body).await.expect(201);
    super::cancel(&me, &cancelled).await.expect(200);
    open_with_key(&me, "other", &body).await.expect_problem(410, "gone");
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_repeated_key_returns_the_file_in_its_first_batch(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let (one, other) = (open(&me, &[]).await, open(&me, &[]).await);
    let init = async |batch: &serde_json::Value| {
        let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
        me.send(request.json(&json!({ "fileName": "a", "size": 1, "batchId": batch["batchId"] }))).await
    };
    let first = init(&one).await.expect(201);
    let second = init(&other).await.expect(201);
    assert_eq!((&first["fileId"], &second["batchId"]), (&second["fileId"], &one["batchId"]));
    complete(&me, &other).await.expect(200);
    assert_eq!(
        init(&other).await.expect(201)["fileId"],
        first["fileId"],
        "also if the other batch is completed"
    );
    super::cancel(&me, &one).await.expect(200);
    init(&one).await.expect_problem(410, "gone");
}

async fn ten_thousand_files_are_opened_by_one_call(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let started = std::time::Instant::now();
    let batch = open(&me, &vec![1; 10_000]).await;
    println!("{database:?}: 10,000 files opened and signed in {:?}", started.elapsed());
    assert_eq!(batch["files"].as_array().expect("files").len(), 10_000);
    assert_eq!(me.used().await, 10_000);
    let seen = me.get(&path(&batch)).await.expect(200);
    assert_eq!(each(&seen, "fileId"), each(&batch, "fileId"));
    let refused = me.post("/api/v2/batches", wanted(&vec![1; 10_001])).await;
    assert_eq!(refused.expect_problem(400, "invalid_request")["errors"][0]["field"], "files");
    super::cancel(&me, &batch).await.expect(200);
    oracle::catalog_is_sound(&server).await;
}

on_each_database!(
    a_batch_is_opened_filled_and_completed,
    a_batch_is_refused_if_not_all_its_files_fit,
    requests_with_one_key_open_one_batch,
    a_repeated_key_returns_the_file_in_its_first_batch,
    ten_thousand_files_are_opened_by_one_call,
);
