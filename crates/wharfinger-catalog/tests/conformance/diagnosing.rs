//! The lifecycle crate and the catalog find the same fault for each combination of a file and its jobs.

use wharfinger_catalog::Scope;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::diagnosis::{Job, JobState, Position, Work, fault};
use wharfinger_lifecycle::file;
use wharfinger_lifecycle::stage::Stage;
use wharfinger_lifecycle::state::Status;

use super::sample::{HOUR, NOW, REFUSING, committed};
use super::stages::queued;
use super::test_db::TestDb;

const LATER: UnixMs = NOW + HOUR;
const OTHER_JOB: &str = "018f4e6e-7f3a-7000-8000-00000000000f";

fn text(word: Option<&str>) -> String {
    word.map_or_else(|| "NULL".to_owned(), |word| format!("'{word}'"))
}

fn states(version: i64) -> Vec<JobState> {
    let mut states = vec![JobState::Waiting, JobState::Dead];
    for held in [version, version - 1] {
        for until in [LATER, LATER + 1] {
            for deadline_at in [LATER, LATER + 1] {
                states.push(JobState::Leased { version: held, until, deadline_at });
            }
        }
    }
    states
}

fn set_job(stage: Stage, state: JobState) -> String {
    let queue = stage.queue();
    match state {
        JobState::Waiting => {
            format!("queue = '{queue}', state = 'waiting', lease_until = NULL, deadline_at = NULL")
        }
        JobState::Dead => {
            format!("queue = '{queue}', state = 'dead', lease_until = NULL, deadline_at = NULL")
        }
        JobState::Leased { version, until, deadline_at } => format!(
            "queue = '{queue}', state = 'leased', file_version = {version}, lease_until = {until}, deadline_at = {deadline_at}"
        ),
    }
}

pub(super) async fn lifecycle_and_catalog_find_the_same_faults(db: &TestDb) {
    let file = queued(db, &[Stage::Scan]).await;
    let mut faults = std::collections::BTreeSet::new();
    let mut compared = 0;
    let mut compare = async |work: &Work<Stage>, jobs: &[Job<Stage>]| {
        let listed = db.catalog.stuck_files(&Scope::All, (LATER, LATER), None, 10).await.expect("read");
        let [listed] = &listed[..] else { panic!("one file: {listed:?}") };
        let expected = fault(work, jobs, LATER).map(|fault| fault.to_string());
        assert_eq!(expected, listed.fault.map(|fault| fault.to_string()), "{work:?} {jobs:?}");
        faults.insert(expected);
        compared += 1;
    };
    for status in Status::ALL.into_iter().filter(|status| status.is_working()) {
        for stage in [None, Some(Stage::Scan), Some(Stage::Extract)] {
            let place = text(stage.map(Stage::as_str));
            db.sql(&format!(
                "UPDATE files SET pipeline_status = '{status}', stage = {place}, next_check_at = {NOW}"
            ))
            .await;
            let work =
                Work { stage, position: Position::of(status), version: file.version, last_progress_at: NOW };
            for queue in [Stage::Scan, Stage::Extract] {
                for state in states(file.version) {
                    db.sql(&format!("UPDATE jobs SET {} WHERE queue LIKE 'file-%'", set_job(queue, state)))
                        .await;
                    compare(&work, &[Job { stage: queue, state }]).await;
                }
            }
        }
    }
    let work = Work {
        stage: Some(Stage::Extract),
        position: Position::of(Status::Embedding),
        version: file.version,
        last_progress_at: NOW,
    };
    let waiting = Job { stage: Stage::Scan, state: JobState::Waiting };
    db.sql(&format!("UPDATE jobs SET {} WHERE queue LIKE 'file-%'", set_job(Stage::Scan, JobState::Waiting)))
        .await;
    db.sql(&format!(
        "INSERT INTO jobs (id, queue, tenant_id, file_id, state, run_at, attempts, max_attempts, lease_token, created_at, \
         updated_at) SELECT '{OTHER_JOB}', queue, tenant_id, file_id, 'waiting', 0, 0, 1, 0, 0, 0 FROM jobs \
         WHERE queue LIKE 'file-%'"
    ))
    .await;
    compare(&work, &[waiting.clone(), waiting]).await;
    db.sql("DELETE FROM jobs WHERE queue LIKE 'file-%'").await;
    compare(&work, &[]).await;
    assert_eq!(faults.len(), 9, "each fault, and no fault: {faults:?}");
    assert!(compared > 300, "{compared}");

    db.sql("UPDATE files SET pipeline_status = 'queued', stage = 'scan'").await;
    let file = db.catalog.file(file.id).await.expect("read").expect("it is there");
    committed(&db.catalog, file::delete(&file, &REFUSING, LATER).expect("deletable")).await;
}
