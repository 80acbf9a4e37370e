//! Files of every type are stored. Those without text become ready without it, and uploaders choose the stages.

use serde_json::{Value, json};

use super::{ALL, chunks, statuses, told};
use crate::oracle;
use crate::test_app::{Client, Database, TestApp, TestEnv, on_each_database};
use wharfinger::core::Role;

/// A JPEG by its first bytes, followed by noise.
fn picture(bytes: u32) -> Vec<u8> {
    let noise = (0..bytes / 4).map(|n| n.wrapping_mul(2_654_435_761)).flat_map(u32::to_le_bytes);
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01".iter().copied().chain(noise).collect()
}

/// Uploads a file that was announced with these stages; returns its id.
async fn upload(server: &TestApp, stages: &Value) -> String {
    let body = json!({ "fileName": "kai.txt", "size": 5, "stages": stages });
    let me = server.me();
    let grant = me.post("/api/v2/files/init", body).await.expect(201);
    server.put_bytes(&grant, b"cargo").await.expect(200);
    let id = grant["fileId"].as_str().expect("an id").to_owned();
    me.confirm(&id).await.expect(200);
    id
}

async fn last_reason(me: &Client<'_>, file: &str) -> String {
    let history = me.get(&format!("/api/v2/files/{file}/history")).await.expect(200);
    let events = history["events"].as_array().expect("a list").clone();
    events.last().expect("an event")["reason"].as_str().expect("a reason").to_owned()
}

async fn a_picture_becomes_ready_without_text(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[("EXTRACT_FILE_BYTES_MAX", "4096")]);
    let server = env.start().await;
    let me = server.me();
    // The second is too large to be extracted, which does not matter for a picture.
    let pictures = [me.enqueue("a.jpg", &picture(2_000)).await, me.enqueue("b.jpg", &picture(9_000)).await];
    let empty = [me.enqueue("empty.txt", b"").await, me.enqueue("blank.txt", b" \n\t\n").await];
    let archive = me.enqueue("c.zip", b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").await;
    let text = me.enqueue("d.txt", b"Forty crates.").await;
    let long = me.enqueue("e.txt", "Forty crates.\n".repeat(500).as_bytes()).await;
    assert_eq!(me.file(&pictures[0]).await["textStatus"], Value::Null);
    server.settle().await;

    for (file, why) in pictures
        .iter()
        .map(|file| (file, "cannot extract text from a file of type JPG (image/jpeg)"))
        .chain(empty.iter().map(|file| (file, "the file has no text")))
        .chain([(&archive, "cannot extract text from a ZIP archive that is not a document")])
    {
        let found = me.file(file).await;
        assert_eq!((&found["status"], &found["textStatus"]), (&json!("ready"), &json!("none")), "{found}");
        assert_eq!(
            (&found["error"], &found["stages"]),
            (&Value::Null, &json!(ALL.split(',').collect::<Vec<_>>()))
        );
        let steps = "registered uploaded queued scanning queued extracting ready";
        assert_eq!(statuses(&me, file).await.join(" "), steps);
        assert_eq!(last_reason(&me, file).await, format!("extract finished: {why}; skipped: chunk,embed"));
        assert_eq!(chunks(&me, file).await, Vec::<Value>::new());
        me.get(&format!("/api/v2/files/{file}/download")).await.expect(302);
    }
    let found = me.file(&text).await;
    assert_eq!((&found["status"], &found["textStatus"]), (&json!("ready"), &json!("extracted")), "{found}");
    let failed = me.file(&long).await;
    assert!(failed["error"].as_str().expect("a reason").contains("too large to extract"), "{failed}");
    let told = told(&me).await;
    let of = |file: &String| told.iter().find(|one| one["fileId"] == file.as_str()).expect("told").clone();
    assert_eq!(
        (&of(&pictures[0])["kind"], &of(&pictures[0])["data"]),
        (&json!("file-ready"), &json!({ "textStatus": "none" }))
    );
    assert_eq!(of(&text)["data"], json!({ "textStatus": "extracted" }));
    let letters = me.get("/api/v2/dlq").await.expect(200);
    assert_eq!(letters["jobs"].as_array().expect("a list").len(), 1, "{letters}");
    for file in pictures.iter().chain(&empty).chain([&archive, &text, &long]) {
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    server.settle().await;
    env.advance(3_600_000);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn a_picture_fails_where_the_operator_wants_that(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[("EXTRACT_UNSUPPORTED", "failed")]);
    let server = env.start().await;
    let me = server.me();
    // Its name and a word of its type do not matter.
    let file = me.enqueue("report.pdf", &picture(2_000)).await;
    // A type that can have text, but has none, does not fail.
    let empty = me.enqueue("empty.txt", b"").await;
    server.settle().await;
    let failed = me.file(&file).await;
    let why = "cannot extract text from a file of type JPG (image/jpeg)";
    assert_eq!((&failed["status"], &failed["error"]), (&json!("failed"), &json!(why)), "{failed}");
    assert_eq!(failed["textStatus"], Value::Null);
    assert_eq!(me.file(&empty).await["textStatus"], "none");
    let told = told(&me).await;
    let of_file = told.iter().find(|one| one["fileId"] == file.as_str()).expect("told");
    assert_eq!((&of_file["kind"], &of_file["data"]["reason"]), (&json!("file-failed"), &json!(why)));
    let letter = me.get("/api/v2/dlq").await.expect(200)["jobs"][0].clone();
    assert_eq!((&letter["fileId"], &letter["stage"]), (&json!(file), &json!("extract")));
    assert_eq!(
        (&letter["reason"], &letter["lastError"], &letter["attempts"]),
        (&json!(why), &json!(why), &json!(1))
    );
    oracle::catalog_is_sound(&server).await;
    server.crash().await;

    // Under the default the same file is processed again, and is ready.
    let env = env.also(&[("EXTRACT_UNSUPPORTED", "ready")]);
    let server = env.start().await;
    let me = server.me();
    let path = format!("/api/v2/dlq/{}/redrive", letter["jobId"].as_str().expect("an id"));
    me.post(&path, json!({})).await.expect(200);
    server.settle().await;
    let ready = me.file(&file).await;
    assert_eq!((&ready["status"], &ready["textStatus"]), (&json!("ready"), &json!("none")), "{ready}");
    oracle::all_is_healed(&env, &server).await;
}

async fn an_uploader_chooses_stages(database: Database) {
    let env = TestEnv::with_stages(database, "scan,extract,chunk", &[]);
    let server = env.start().await;
    let me = server.me();
    let init = async |stages: Value| {
        me.post("/api/v2/files/init", json!({ "fileName": "a", "size": 5, "stages": stages })).await
    };
    for (stages, word) in [
        (json!(["extract"]), "must contain `scan`"),
        (json!([]), "must contain `scan`"),
        (json!(["scan", "paint"]), "`paint` is not a stage. The stages are scan,extract,chunk,embed"),
        (
            json!(["scan", "embed"]),
            "`embed` is not configured on this server. The configured stages are scan,extract,chunk",
        ),
        (json!(["scan", "chunk"]), "`chunk` needs `extract`"),
        (json!(["scan", "scan"]), "`scan` is listed twice"),
        (json!("scan"), "wrong type"),
    ] {
        let problem = init(stages.clone()).await.expect_problem(400, "invalid_request");
        let detail = problem.to_string();
        assert!(detail.contains("`stages`") && detail.contains(word), "{stages}: {detail}");
    }
    let files = json!([{ "fileName": "a", "size": 1, "stages": ["scan"] }, { "fileName": "b", "size": 1, "stages": ["chunk"] }]);
    let problem =
        me.post("/api/v2/batches", json!({ "files": files })).await.expect_problem(400, "invalid_request");
    assert!(problem.to_string().contains("files[1].stages"), "{problem}");
    assert_eq!(env.scalar("SELECT CAST(COUNT(*) AS BIGINT) FROM files").await, 0, "nothing was registered");

    // The order is that of the server.
    let file = upload(&server, &json!(["extract", "scan"])).await;
    let (only_scan, all) = (upload(&server, &json!(["scan"])).await, upload(&server, &Value::Null).await);
    let files = json!([{ "fileName": "a", "size": 5, "stages": ["scan"] }, { "fileName": "b", "size": 5 }]);
    let batch = me.post("/api/v2/batches", json!({ "files": files })).await.expect(201);
    let of_batch = |n: usize| batch["files"][n]["fileId"].as_str().expect("an id").to_owned();
    assert_eq!(me.file(&of_batch(0)).await["stages"], json!(["scan"]));
    assert_eq!(me.file(&of_batch(1)).await["stages"], Value::Null, "decided at the confirm");
    for n in 0..2 {
        server.put_bytes(&batch["files"][n], b"cargo").await.expect(200);
    }
    me.post(&format!("/api/v2/batches/{}/complete", batch["batchId"].as_str().expect("an id")), json!({}))
        .await
        .expect(200);
    server.settle().await;
    for (file, stages, text) in [
        (&file, json!(["scan", "extract"]), json!("extracted")),
        (&only_scan, json!(["scan"]), Value::Null),
        (&all, json!(["scan", "extract", "chunk"]), json!("extracted")),
        (&of_batch(0), json!(["scan"]), Value::Null),
        (&of_batch(1), json!(["scan", "extract", "chunk"]), json!("extracted")),
    ] {
        let found = me.file(file).await;
        assert_eq!(
            (&found["status"], &found["stages"], &found["textStatus"]),
            (&json!("ready"), &stages, &text),
            "{found}"
        );
    }
    let steps = "registered uploaded queued scanning queued extracting ready";
    assert_eq!(statuses(&me, &file).await.join(" "), steps);
    let listed = me.get("/api/v2/files").await.expect(200);
    let of_list =
        listed["files"].as_array().expect("a list").iter().find(|one| one["fileId"] == file.as_str());
    assert_eq!(of_list.expect("listed")["stages"], json!(["scan", "extract"]));

    // The same key with other stages is another request; in another order it is the same.
    let with_key = async |stages: Value| {
        let request = me.request(reqwest::Method::POST, "/api/v2/files/init").header("idempotency-key", "k");
        me.send(request.json(&json!({ "fileName": "a", "size": 5, "stages": stages }))).await
    };
    let first = with_key(json!(["scan", "extract"])).await.expect(201);
    assert_eq!(with_key(json!(["extract", "scan"])).await.expect(201)["fileId"], first["fileId"]);
    with_key(json!(["scan"])).await.expect_problem(422, "idempotency_mismatch");
    with_key(Value::Null).await.expect_problem(422, "idempotency_mismatch");
    oracle::catalog_is_sound(&server).await;
}

/// The configuration changes between init and confirm, and between a failure and its redrive.
async fn a_changed_configuration_meets_chosen_stages(database: Database) {
    let env = TestEnv::with_stages(database, "scan,extract,chunk,embed", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let me = server.me();
    let wanted = json!({ "fileName": "a", "size": 5, "stages": ["scan", "extract", "chunk"] });
    let early = me.post("/api/v2/files/init", wanted).await.expect(201);
    server.put_bytes(&early, b"cargo").await.expect(200);
    let worker = server.as_user("ops", "w", Role::Worker);
    let mut letters = Vec::new();
    for stages in [Value::Null, json!(["scan"]), json!(["scan", "extract"])] {
        let file = upload(&server, &stages).await;
        let lease = worker.post("/api/v2/workers/lease", json!({ "stages": ["scan"] })).await.expect(200);
        let job = lease["jobs"][0]["jobId"].as_str().expect("a job").to_owned();
        let body = json!({ "leaseToken": lease["jobs"][0]["leaseToken"], "error": "too large for the scanner", "retryable": false });
        worker.post(&format!("/api/v2/workers/jobs/{job}/fail"), body).await.expect(200);
        letters.push((file, job));
    }
    server.crash().await;

    let env = env.also(&[("PIPELINE_STAGES", "extract,chunk"), ("PIPELINE_BUILTIN_STAGES", "all")]);
    let server = env.start().await;
    let me = server.me();
    let early = early["fileId"].as_str().expect("an id");
    me.confirm(early).await.expect(200);
    assert_eq!(me.file(early).await["stages"], json!(["extract", "chunk"]));
    for ((file, job), status) in letters.iter().zip(["queued", "ready", "queued"]) {
        let path = format!("/api/v2/dlq/{job}/redrive");
        let answer = me.post(&path, json!({})).await.expect(200);
        assert_eq!(answer, json!({ "fileId": file, "status": status }));
        me.post(&path, json!({})).await.expect_problem(404, "not_found");
    }
    assert_eq!(last_reason(&me, &letters[1].0).await, "scan is not configured any more, no stage is left");
    oracle::catalog_is_sound(&server).await;
    server.settle().await;
    assert_eq!(me.get("/api/v2/dlq").await.expect(200)["jobs"], json!([]));
    for ((file, _), stages) in
        letters.iter().zip([json!(["extract", "chunk"]), json!([]), json!(["extract"])])
    {
        let found = me.file(file).await;
        assert_eq!(
            (&found["status"], &found["error"], &found["stages"]),
            (&json!("ready"), &Value::Null, &stages),
            "{found}"
        );
        assert!(found["readyAt"].is_string());
    }
    let ready = told(&me).await.iter().filter(|one| one["kind"] == "file-ready").count();
    assert_eq!(ready, 4, "each owner is told once");
    for (file, _) in &letters {
        me.delete(&format!("/api/v2/files/{file}")).await.expect(204);
    }
    server.settle().await;
    env.advance(3_600_000);
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

async fn an_outside_worker_reports_a_file_without_text(database: Database) {
    let env = TestEnv::with_stages(database, "extract,chunk", &[("PIPELINE_BUILTIN_STAGES", "")]);
    let lease = async |server: &TestApp, stage: &str| {
        let worker = server.as_user("ops", "w", Role::Worker);
        worker.post("/api/v2/workers/lease", json!({ "stages": [stage] })).await.expect(200)["jobs"][0]
            .clone()
    };
    let call = async |server: &TestApp, job: &Value, verb: &str, mut body: Value| {
        body["leaseToken"] = job["leaseToken"].clone();
        let path = format!("/api/v2/workers/jobs/{}/{verb}", job["jobId"].as_str().expect("an id"));
        server.as_user("ops", "w", Role::Worker).post(&path, body).await
    };
    // Returns the status, the text status and the last reason.
    let extract = async |server: &TestApp, verb: &str, body: Value| {
        let file = server.me().enqueue("a", b"cargo").await;
        let job = lease(server, "extract").await;
        let ended = call(server, &job, verb, body).await.expect(200);
        let found = server.me().file(&file).await;
        assert_eq!(found["status"], ended["status"], "{found}");
        (found["status"].clone(), found["textStatus"].clone(), last_reason(&server.me(), &file).await)
    };
    let none =
        |why: &str| (json!("ready"), json!("none"), format!("extract finished: {why}; skipped: chunk"));
    let unsupported = json!({ "error": "a drawing", "unsupported": true, "retryable": true });
    let server = env.start().await;
    for text in ["", "\n"] {
        let ended = extract(&server, "complete", json!({ "output": { "text": text } })).await;
        assert_eq!(ended, none("the file has no text"));
    }
    assert_eq!(extract(&server, "fail", unsupported.clone()).await, none("a drawing"));
    let (status, text, _) = extract(&server, "complete", json!({ "output": { "text": "cargo" } })).await;
    assert_eq!((status, text), (json!("queued"), json!("extracted")));
    let job = lease(&server, "chunk").await;
    let problem =
        call(&server, &job, "fail", unsupported.clone()).await.expect_problem(400, "invalid_request");
    assert_eq!(problem["errors"][0]["field"], "unsupported", "{problem}");
    server.crash().await;

    let env = env.also(&[("EXTRACT_UNSUPPORTED", "failed")]);
    let server = env.start().await;
    let ended = extract(&server, "fail", unsupported).await;
    assert_eq!(ended, (json!("failed"), Value::Null, "a drawing".to_owned()));
    let ended = extract(&server, "complete", json!({ "output": { "text": "" } })).await;
    assert_eq!(ended, none("the file has no text"));
    oracle::catalog_is_sound(&server).await;
}

on_each_database! {
    a_picture_becomes_ready_without_text,
    a_picture_fails_where_the_operator_wants_that,
    an_uploader_chooses_stages,
    a_changed_configuration_meets_chosen_stages,
    an_outside_worker_reports_a_file_without_text,
}
