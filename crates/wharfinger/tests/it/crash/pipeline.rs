//! On their way through the stages: by this program, by workers outside, and begun anew where nobody came back.

use super::*;

macro_rules! every_verb_of_the_pipeline {
    ($($name:ident: $hit:ident $verb:ident on $database:ident through $stages:literal),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let ground = Ground::with_stages(Database::$database, $stages, &[]);
            $hit(Verb::$verb, &ground).await;
        })*
    };
}

every_verb_of_the_pipeline! {
    process_on_sqlite: hit_every_call Process on Sqlite through "extract,chunk",
    process_on_postgres: hit_each_call_once Process on Postgres through "extract,chunk,embed",
    complete_a_job_on_sqlite: hit_every_call CompleteJob on Sqlite through "extract,chunk",
    complete_a_job_on_postgres: hit_each_call_once CompleteJob on Postgres through "extract,chunk",
    lease_on_sqlite: hit_every_call Lease on Sqlite through "extract,chunk",
    recover_on_sqlite: hit_every_call Recover on Sqlite through "extract,chunk",
    recover_on_postgres: hit_every_call Recover on Postgres through "extract,chunk",
    retry_on_sqlite: hit_every_call Retry on Sqlite through "extract,chunk",
    retry_on_postgres: hit_each_call_once Retry on Postgres through "extract,chunk",
    lease_on_postgres: hit_each_call_once Lease on Postgres through "extract,chunk",
}
