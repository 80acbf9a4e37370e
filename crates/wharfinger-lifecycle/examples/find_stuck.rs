//! Finds stuck work in another pipeline. In this example the pipeline is a table in the source. A program runs two queries
//! instead: work without recent progress, and the jobs for that work.

use wharfinger_lifecycle::diagnosis::{Diagnosis, Job, JobState, Position, Work, diagnose};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Transcode,
    Thumbnail,
}

const MINUTE_MS: i64 = 60_000;
const STUCK_AFTER_MS: i64 = 30 * MINUTE_MS;
const NOW: i64 = 1_000 * MINUTE_MS;

fn main() {
    let leased = |until| JobState::Leased { version: 2, until, deadline_at: NOW + 60 * MINUTE_MS };
    let waiting =
        |stage| Work { stage: Some(stage), position: Position::Waiting, version: 1, last_progress_at: 0 };
    let working = |stage| Work {
        stage: Some(stage),
        position: Position::InProgress(stage),
        version: 2,
        last_progress_at: 0,
    };
    let films = [
        ("fresh.mp4", Work { last_progress_at: NOW - MINUTE_MS, ..waiting(Stage::Transcode) }, vec![]),
        ("in-the-queue.mp4", waiting(Stage::Transcode), vec![(Stage::Transcode, JobState::Waiting)]),
        ("in-work.mp4", working(Stage::Thumbnail), vec![(Stage::Thumbnail, leased(NOW + MINUTE_MS))]),
        ("lost.mp4", waiting(Stage::Thumbnail), vec![]),
        ("abandoned.mp4", working(Stage::Transcode), vec![(Stage::Transcode, leased(NOW - MINUTE_MS))]),
    ];
    for (name, work, jobs) in films {
        let jobs: Vec<Job<Stage>> = jobs.into_iter().map(|(stage, state)| Job { stage, state }).collect();
        match diagnose(&work, &jobs, STUCK_AFTER_MS, NOW) {
            Diagnosis::Progressing => println!("{name}: in progress"),
            Diagnosis::Waiting => println!("{name}: waiting"),
            Diagnosis::Stuck(fault) => println!("{name}: stuck, {fault}"),
        }
    }
}
