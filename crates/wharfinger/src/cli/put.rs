//! `wharfinger put`: uploads files and folders as one batch, several at once. Run again after a cut, it goes on where it
//! stopped: each file has an Idempotency-Key made of what it is, so the server knows it again.

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
use client::{Client, Ended};
use progress::Progress;

#[derive(Args)]
pub(super) struct Arguments {
    /// Files and folders
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<std::path::PathBuf>,
    /// The server (WHARFINGER_SERVER); default: the one these settings describe
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// A token (WHARFINGER_TOKEN); default: one minted with the local server's key
    #[arg(long)]
    token: Option<String>,
    /// For a minted token
    #[arg(long, default_value = "default")]
    tenant: String,
    /// For a minted token
    #[arg(long, default_value = "local")]
    user: String,
    /// How many files at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// How many parts of a large file at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    parts: u16,
    /// Upload again what was uploaded before
    #[arg(long)]
    again: bool,
    /// One JSON object per file, then a summary
    #[arg(long)]
    json: bool,
}

const TOKEN_MS: i64 = 24 * 3_600_000;

pub(super) async fn run(flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    let (server, token) = reach(&flags, &arguments)?;
    let found = files::find(&arguments.paths);
    let client =
        Client::new(server, token, arguments.again, usize::from(arguments.parts)).map_err(Failure::Failed)?;
    let progress = Progress::start(&found.files, arguments.json);
    for (path, problem) in &found.problems {
        progress.failed(path, problem);
    }
    // Files are added one by one: what one of them cannot have, as room or a good name, must not keep the others out.
    let batch = client.batch_of(&found.files);
    let ended: Vec<Ended> = futures::stream::iter(&found.files)
        .map(|file| client.put(file, &batch, &progress))
        .buffer_unordered(usize::from(arguments.jobs))
        .collect()
        .await;
    let failures = found.problems.len() + ended.iter().filter(|ended| **ended == Ended::Failed).count();
    let completed = batch.complete(&client, failures > 0).await;
    progress.summary(&ended, found.problems.len());
    match failures {
        0 => completed.map_err(|problem| {
            Failure::Failed(format!("all is uploaded, but the batch could not be completed: {problem}"))
        }),
        n => {
            Err(Failure::Failed(format!("{n} of {} not uploaded", found.files.len() + found.problems.len())))
        }
    }
}

/// The server and a token for it: as given, or those of the server that runs here with these settings.
fn reach(flags: &Flags, arguments: &Arguments) -> Result<(String, String), Failure> {
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
                    "no token: give --token or WHARFINGER_TOKEN, or run this where {} is",
                    settings.data_dir.display()
                )));
            }
            let caller = token::caller(&arguments.tenant, &arguments.user, "user")?;
            token::mint(&settings, &caller, Clock::system().now() + TOKEN_MS)?
        }
    };
    Ok((server.trim_end_matches('/').to_owned(), token))
}
