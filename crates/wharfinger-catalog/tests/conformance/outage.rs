//! A PostgreSQL server that is killed under load and restarted: no answered write is lost.

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

/// Registers one file after another until the receiver is closed.
async fn keep_registering(catalog: Catalog, user: String, answers: mpsc::Sender<Outcome>) {
    loop {
        let wanted = registration(("harbour", &user), 1);
        let file = file_of(&wanted).clone();
        let outcome = catalog.register(wanted).await;
        if answers.send((file, outcome)).await.is_err() {
            return;
        }
    }
}

/// Receives answers until `count` files are registered.
async fn receive_registered(answers: &mut mpsc::Receiver<Outcome>, count: usize) -> Vec<Outcome> {
    let mut received: Vec<Outcome> = Vec::new();
    while received.iter().filter(|(_, outcome)| matches!(outcome, Ok(RegisterOutcome::Created))).count()
        < count
    {
        received.push(answers.recv().await.expect("a sender is left"));
    }
    received
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_writes_survive_a_killed_server() {
    let mut server = Postgres::start().expect("a server for this test alone");
    let catalog = open(&CatalogUrl::Postgres(server.create_database()), Faults::none()).await;
    catalog.migrate(NOW).await.expect("migrated");

    let (sender, mut answers) = mpsc::channel(1);
    for n in 0..6 {
        tokio::spawn(keep_registering(catalog.clone(), format!("user-{n}"), sender.clone()));
    }
    drop(sender);
    let mut all = Vec::new();
    for _ in 0..3 {
        all.extend(receive_registered(&mut answers, 20).await);
        let killing = tokio::task::spawn_blocking(move || {
            server.kill().expect("killed");
            server.start_again().expect("started again");
            server
        });
        server = killing.await.expect("ended");
    }
    // The same handle connects to the restarted server.
    all.extend(receive_registered(&mut answers, 20).await);
    answers.close();
    while let Some(last) = answers.recv().await {
        all.push(last);
    }

    for (file, outcome) in all {
        let stored = catalog.file(file.id).await.expect("read");
        match outcome {
            Ok(answer) => {
                assert_eq!(answer, RegisterOutcome::Created);
                assert_eq!(stored, Some(file), "an answered write was lost");
            }
            Err(CatalogError::Unknown(_)) => {}
            Err(error) => assert_eq!(stored, None, "{error}, but the file exists"),
        }
    }
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
    catalog.close().await;
}

/// Terminates the connections that wait for a lock. Returns after the first one.
async fn terminate_lock_waiters(admin: &mut PgConnection) {
    let terminate = "SELECT COUNT(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE wait_event_type = 'Lock' AND datname = current_database()) AS terminated";
    while sqlx::query_scalar::<_, i64>(terminate).fetch_one(&mut *admin).await.expect("asked") == 0 {
        tokio::task::yield_now().await;
    }
}

async fn run(connection: &mut PgConnection, statement: &'static str) {
    sqlx::query(statement).execute(connection).await.expect("executed");
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
    terminate_lock_waiters(&mut admin).await;
    run(&mut blocker, "COMMIT").await;
    assert_eq!(writing.await.expect("no panic").expect("written"), RegisterOutcome::Created);

    run(&mut blocker, "BEGIN").await;
    run(&mut blocker, "LOCK TABLE files IN ACCESS EXCLUSIVE MODE").await;
    let reading = tokio::spawn({
        let (catalog, id) = (catalog.clone(), file.id);
        async move { catalog.file(id).await }
    });
    terminate_lock_waiters(&mut admin).await;
    run(&mut blocker, "COMMIT").await;
    assert_eq!(reading.await.expect("no panic").expect("read"), Some(file));

    // Idle connections of the pool are terminated too. The next calls do not fail.
    let idle = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'wharfinger' \
        AND datname = current_database()";
    run(&mut admin, idle).await;
    for _ in 0..20 {
        catalog.ping().await.expect("answered");
        let answer = catalog.register(registration(("harbour", "ada"), 1)).await.expect("written");
        assert_eq!(answer, RegisterOutcome::Created);
    }
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
    catalog.close().await;
}
