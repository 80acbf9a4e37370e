//! `wharfinger put`: uploads files and folders as one batch, several at once. After an interruption, the same command
//! resumes: each file has an Idempotency-Key derived from its content and name, so the server recognizes it.

mod batch;
mod client;
mod files;
mod parts;
mod progress;

use clap::Args;
use futures::StreamExt as _;

use super::Failure;
use super::remote::{Access, RemoteArguments};
use crate::config::Flags;
use client::{Client, PutOutcome};
use progress::Progress;

#[derive(Args)]
pub(super) struct Arguments {
    /// Files and folders to upload
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<std::path::PathBuf>,
    #[command(flatten)]
    remote: RemoteArguments,
    /// Files uploaded at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Parts of a large file uploaded at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    parts: u16,
    /// The stages for these files, separated by commas: some of the server's [default: all]
    #[arg(long, value_name = "STAGES", value_delimiter = ',')]
    stages: Option<Vec<String>>,
    /// Upload also the files that are already on the server
    #[arg(long)]
    again: bool,
    /// Print one JSON object per file, then a summary
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    let Access { server, token, .. } = arguments.remote.access(&flags, "user")?;
    let found = files::find(&arguments.paths);
    let client = Client::new(server, token, arguments.again, arguments.stages, usize::from(arguments.parts))
        .map_err(Failure::Failed)?;
    let progress = Progress::start(&found.files, arguments.json);
    for (path, problem) in &found.problems {
        progress.failed(path, problem);
    }
    // Files are added one by one: one that is refused (quota, bad name) must not stop the others.
    let batch = client.batch_of(&found.files);
    let outcomes: Vec<PutOutcome> = futures::stream::iter(&found.files)
        .map(|file| client.put(file, &batch, &progress))
        .buffer_unordered(usize::from(arguments.jobs))
        .collect()
        .await;
    let failures = found.problems.len() + outcomes.iter().filter(|one| **one == PutOutcome::Failed).count();
    let completed = batch.complete(&client, failures > 0).await;
    progress.summary(&outcomes, found.problems.len());
    match failures {
        0 => completed.map_err(|problem| {
            Failure::Failed(format!(
                "all files are uploaded, but the batch could not be completed: {problem}"
            ))
        }),
        n => Err(Failure::Failed(format!(
            "{n} of {} files were not uploaded",
            found.files.len() + found.problems.len()
        ))),
    }
}
