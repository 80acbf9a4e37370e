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
