//! A PostgreSQL server that is killed under load and started again: what was answered holds.

use harness::postgres::Postgres;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::sync::mpsc;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogError, CatalogUrl, RegisterOutcome};
use wharfinger_lifecycle::file::File;

use super::sample::{NOW, file_of, registration};
use super::test_db::open;

type Outcome = (File, Result<RegisterOutcome, CatalogError>);

/// Registers one file after the other for as long as somebody listens.
async fn keep_registering(catalog: Catalog, user: String, told: mpsc::Sender<Outcome>) {
    loop {
        let wanted = registration(("harbour", &user), 1);
        let file = file_of(&wanted).clone();
        let outcome = catalog.register(wanted).await;
        if told.send((file, outcome)).await.is_err() {
            return;
        }
    }
}

/// Takes what was answered until this many were made since.
async fn until_made(answers: &mut mpsc::Receiver<Outcome>, made: usize) -> Vec<Outcome> {
    let mut taken: Vec<Outcome> = Vec::new();
    while taken.iter().filter(|(_, outcome)| matches!(outcome, Ok(RegisterOutcome::Created))).count() < made {
        taken.push(answers.recv().await.expect("somebody registers"));
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_writes_survive_a_killed_server() {
    let mut server = Postgres::start().expect("a server of its own, to be broken");
    let catalog = open(&CatalogUrl::Postgres(server.create_database()), Faults::none()).await;
    catalog.migrate(NOW).await.expect("migrated");

    let (told, mut answers) = mpsc::channel(1);
    for n in 0..6 {
        tokio::spawn(keep_registering(catalog.clone(), format!("user-{n}"), told.clone()));
    }
    drop(told);
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(until_made(&mut answers, 20).await);
        let killing = tokio::task::spawn_blocking(move || {
            server.kill().expect("killed");
            server.start_again().expect("started again");
            server
        });
        server = killing.await.expect("ended");
    }
    // The same handle finds the server again, without being told.
    all.extend(until_made(&mut answers, 20).await);
    answers.close();
    while let Some(last) = answers.recv().await {
        all.push(last);
    }

    for (file, outcome) in all {
        let stored = catalog.file(file.id).await.expect("read");
        match outcome {
            Ok(answer) => {
                assert_eq!(answer, RegisterOutcome::Created);
                assert_eq!(stored, Some(file), "answered and lost");
            }
            Err(CatalogError::Unknown(_)) => {}
            Err(error) => assert_eq!(stored, None, "{error}, and yet it is there"),
        }
    }
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
    catalog.close().await;
}

/// Breaks the connections of all who wait for a lock, as a server that goes down would; answers when there was one.
async fn break_who_waits(admin: &mut PgConnection) {
    let broken = "SELECT COUNT(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE wait_event_type = 'Lock' AND datname = current_database()) AS broken";
    while sqlx::query_scalar::<_, i64>(broken).fetch_one(&mut *admin).await.expect("asked") == 0 {
        tokio::task::yield_now().await;
    }
}

async fn run(connection: &mut PgConnection, statement: &'static str) {
    sqlx::query(statement).execute(connection).await.expect("done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncommitted_calls_are_retried_on_another_connection() {
    let url = harness::postgres::shared().create_database();
    let catalog = open(&CatalogUrl::Postgres(url.clone()), Faults::none()).await;
    catalog.migrate(NOW).await.expect("migrated");
    let mut blocker = PgConnection::connect(&url).await.expect("a connection");
    let mut admin = PgConnection::connect(&url).await.expect("a connection");

    let wanted = registration(("harbour", "ada"), 1);
    let file = file_of(&wanted).clone();
    run(&mut blocker, "BEGIN").await;
    run(&mut blocker, "LOCK TABLE files IN ACCESS EXCLUSIVE MODE").await;
    let writing = tokio::spawn({
        let catalog = catalog.clone();
        async move { catalog.register(wanted).await }
    });
    break_who_waits(&mut admin).await;
    run(&mut blocker, "COMMIT").await;
    assert_eq!(writing.await.expect("no panic").expect("written"), RegisterOutcome::Created);

    run(&mut blocker, "BEGIN").await;
    run(&mut blocker, "LOCK TABLE files IN ACCESS EXCLUSIVE MODE").await;
    let reading = tokio::spawn({
        let (catalog, id) = (catalog.clone(), file.id);
        async move { catalog.file(id).await }
    });
    break_who_waits(&mut admin).await;
    run(&mut blocker, "COMMIT").await;
    assert_eq!(reading.await.expect("no panic").expect("read"), Some(file));

    // Those that lie in the pool are broken too, and nobody notices.
    let idle = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'wharfinger' \
        AND datname = current_database()";
    run(&mut admin, idle).await;
    for _ in 0..20 {
        catalog.ping().await.expect("answered");
        let made = catalog.register(registration(("harbour", "ada"), 1)).await.expect("written");
        assert_eq!(made, RegisterOutcome::Created);
    }
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
    catalog.close().await;
}
