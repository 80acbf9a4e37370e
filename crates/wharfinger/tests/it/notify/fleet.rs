//! Several processes share one PostgreSQL: without failures each notification is sent once, in order for each file.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;
use wharfinger::worker::Supervisor;

use super::receiver::Receiver;
use super::{quarantine, telling};
use crate::test_app::Database;

const FILES: usize = 20;

fn check(receiver: &Receiver) {
    let got = receiver.got();
    assert_eq!((got.len(), receiver.distinct().len()), (2 * FILES, 2 * FILES), "each notification once");
    let mut kinds = BTreeMap::<&str, Vec<&str>>::new();
    for one in &got {
        kinds.entry(one.file()).or_default().push(one.kind());
    }
    assert_eq!(kinds.len(), FILES);
    for (file, kinds) in kinds {
        assert_eq!(kinds, ["file-ready", "file-quarantined"], "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_send_every_notification_once_and_in_order() {
    let receiver = Receiver::start().await;
    let env = telling(Database::Postgres, &receiver.url);
    let (one, other) = (env.start().await, env.start().await);
    let me = one.me();
    for n in 0..FILES {
        let file = me.upload(&format!("file {n}"), b"abc").await;
        quarantine(&env, &me, &file).await;
    }
    let stop = CancellationToken::new();
    let relays = (0..6).map(|n| {
        let app = if n % 2 == 0 { &one.app } else { &other.app };
        wharfinger::notify::relay(&app.notifier, &stop)
    });
    for sent in futures::future::join_all(relays).await {
        sent.expect("sent");
    }
    // The second notification of a file may still wait: another relay had the first one at that moment.
    one.settle().await;
    check(&receiver);
}

/// The loops of the workers find the lines without a call.
#[tokio::test(flavor = "multi_thread")]
async fn workers_send_the_notifications_of_an_api_process() {
    let receiver = Receiver::start().await;
    let env = telling(Database::Postgres, &receiver.url);
    let (one, other) = (env.start_as("worker").await, env.start_as("worker").await);
    let api = env.start_as("api").await;
    let loops = [
        Supervisor::start(&one.app).await,
        Supervisor::start(&other.app).await,
        Supervisor::start(&api.app).await,
    ];
    let me = api.me();
    for n in 0..FILES {
        let file = me.upload(&format!("file {n}"), b"abc").await;
        quarantine(&env, &me, &file).await;
    }
    // A longer time would end the leases of lines that are being sent.
    env.advance(6_000);
    let all = async {
        while receiver.got().len() < 2 * FILES {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("all notifications arrive");
    for supervisor in loops {
        supervisor.stop().await;
    }
    check(&receiver);
}
