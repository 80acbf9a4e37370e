//! A PostgreSQL server that is killed under load and started again: what was answered holds.

use harness::postgres::Postgres;
use tokio::sync::mpsc;
use wharfinger_backends::catalog::{Catalog, CatalogError, CatalogUrl, Registered};
use wharfinger_backends::faults::Faults;
use wharfinger_lifecycle::file::File;

use super::sample::{NOW, registration};
use super::site::open;

type Outcome = (File, Result<Registered, CatalogError>);

/// Registers one file after the other for as long as somebody listens.
async fn keep_registering(catalog: Catalog, user: String, told: mpsc::Sender<Outcome>) {
    loop {
        let wanted = registration(("harbour", &user), 1);
        let file = wanted.file.clone();
        let outcome = catalog.register(wanted).await;
        if told.send((file, outcome)).await.is_err() {
            return;
        }
    }
}

/// Takes what was answered until this many were made since.
async fn until_made(answers: &mut mpsc::Receiver<Outcome>, made: usize) -> Vec<Outcome> {
    let mut taken: Vec<Outcome> = Vec::new();
    while taken.iter().filter(|(_, outcome)| matches!(outcome, Ok(Registered::Made))).count() < made {
        taken.push(answers.recv().await.expect("somebody registers"));
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_survives_a_killed_server() {
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
                assert_eq!(answer, Registered::Made);
                assert_eq!(stored, Some(file), "answered and lost");
            }
            Err(CatalogError::Unknown(_)) => {}
            Err(error) => assert_eq!(stored, None, "{error}, and yet it is there"),
        }
    }
    assert_eq!(catalog.audit().await.expect("audited"), Vec::<String>::new());
    catalog.close().await;
}
