//! Operations of the pipeline: built-in stages, outside workers, and recovery of lost jobs.

use super::*;

macro_rules! every_operation_of_the_pipeline {
    ($($name:ident: $operation:ident on $database:ident through $stages:literal),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let env = TestEnv::with_stages(Database::$database, $stages, &[]);
            hit_every_call(Op::$operation, &env).await;
        })*
    };
}

every_operation_of_the_pipeline! {
    process_on_sqlite: Process on Sqlite through "extract,chunk,embed",
    process_on_postgres: Process on Postgres through "extract,chunk",
    complete_a_job_on_sqlite: CompleteJob on Sqlite through "extract,chunk",
    complete_a_job_on_postgres: CompleteJob on Postgres through "extract,chunk",
    lease_on_sqlite: Lease on Sqlite through "extract,chunk",
    recover_on_sqlite: Recover on Sqlite through "extract,chunk",
    recover_on_postgres: Recover on Postgres through "extract,chunk",
    retry_on_sqlite: Retry on Sqlite through "extract,chunk",
    retry_on_postgres: Retry on Postgres through "extract,chunk",
    lease_on_postgres: Lease on Postgres through "extract,chunk",
}

/// For any number of attempts there is one notification (I14) and one text.
pub async fn check_processed_once(server: &TestApp, setup: &Setup) {
    let me = server.me();
    let notifications = me.get("/api/v2/notifications?limit=1000").await.expect(200);
    let notifications = notifications["notifications"].as_array().expect("a list");
    let about: Vec<_> = notifications.iter().filter(|n| n["fileId"] == setup.id.as_str()).collect();
    assert_eq!(about.len(), 1, "{about:?}");
    assert_eq!(about[0]["kind"], "file-ready");
    let chunks = me.get(&format!("/api/v2/files/{}/chunks", setup.id)).await.expect(200);
    let texts: Vec<_> = chunks["chunks"].as_array().expect("a list").iter().map(|c| &c["text"]).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].as_str().expect("a text").starts_with("forty-two bytes of cargo"));
    // Keeps the next round fast.
    me.delete(&format!("/api/v2/files/{}", setup.id)).await.expect(204);
}
