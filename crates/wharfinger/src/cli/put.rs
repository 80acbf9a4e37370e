//! `wharfinger put`: uploads files and folders as one batch, several at once. After an interruption, the same command
//! resumes: each file has an Idempotency-Key derived from its content and name, so the server recognizes it.

mod batch;
mod client;
mod files;
mod parts;
mod progress;

use clap::Args;
use futures::StreamExt as _;

use super::{Failure, token};
use crate::clock::Clock;
use crate::config::{Flags, Settings, client_env};
use client::{Client, PutOutcome};
use progress::Progress;

#[derive(Args)]
pub(super) struct Arguments {
    /// Files and folders to upload
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<std::path::PathBuf>,
    /// The server's address (WHARFINGER_SERVER) [default: from the settings]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The access token (WHARFINGER_TOKEN) [default: created with the key of the local server]
    #[arg(long)]
    token: Option<String>,
    /// The tenant, if the token is created here
    #[arg(long, default_value = "default")]
    tenant: String,
    /// The user, if the token is created here
    #[arg(long, default_value = "local")]
    user: String,
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

const TOKEN_MS: i64 = 24 * 3_600_000;

pub(super) async fn run(flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    let (server, token) = server_and_token(&flags, &arguments)?;
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

/// The server and a token for it: from flags and environment, else those of the server with these settings.
fn server_and_token(flags: &Flags, arguments: &Arguments) -> Result<(String, String), Failure> {
    let server = arguments.server.clone().or_else(|| client_env("WHARFINGER_SERVER"));
    let given = arguments.token.clone().or_else(|| client_env("WHARFINGER_TOKEN"));
    if let (Some(server), Some(token)) = (&server, &given) {
        return Ok((server.trim_end_matches('/').to_owned(), token.clone()));
    }
    let settings = Settings::load(flags)?;
    let server = server
        .or_else(|| settings.public_url.clone())
        .unwrap_or_else(|| format!("http://{}", settings.listen.replace("0.0.0.0", "127.0.0.1")));
    let token = match given {
        Some(token) => token,
        None => {
            if !settings.data_dir.is_dir() {
                return Err(Failure::Usage(format!(
                    "no token: use --token or WHARFINGER_TOKEN, or run this in the server's folder ({} was not found here)",
                    settings.data_dir.display()
                )));
            }
            let caller = token::caller(&arguments.tenant, &arguments.user, "user")?;
            token::mint(&settings, &caller, Clock::system().now() + TOKEN_MS)?
        }
    };
    Ok((server.trim_end_matches('/').to_owned(), token))
}
