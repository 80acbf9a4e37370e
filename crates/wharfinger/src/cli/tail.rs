//! `wharfinger tail`: follows a running server. Prints deleted objects, finished runs of sweeps and notifications as they
//! happen, until Ctrl-C.

mod event;
mod source;

use std::time::{Duration, Instant};

use clap::Args;
use reqwest::StatusCode;
use tokio_util::sync::CancellationToken;

use super::Failure;
use super::interrupt::cancelled_by_ctrl_c;
use super::output::line;
use super::remote::{CallFailure, Reader, RemoteArguments};
use crate::config::{Flags, parse_duration_ms};
use event::Event;
use source::Source;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    remote: RemoteArguments,
    /// Begin this long ago: 30m, 1h, 7d [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_ms)]
    since: Option<i64>,
    /// Print one JSON object per event
    #[arg(long)]
    json: bool,
}

const POLL_PAUSE: Duration = Duration::from_secs(2);
/// A slow server is asked less often: the pause is this many times as long as the calls.
const PAUSE_FACTOR: u32 = 4;
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);

pub(super) async fn run(flags: Flags, arguments: Arguments) -> Result<(), Failure> {
    let stop = cancelled_by_ctrl_c()?;
    let mut tail = Tail::new(&flags, &arguments)?;
    match stop.run_until_cancelled(tail.follow(&flags, &arguments, &stop)).await {
        Some(ended) => ended,
        None => Ok(()),
    }
}

struct Tail {
    reader: Reader,
    is_own_token: bool,
    sources: Vec<Source>,
}

impl Tail {
    fn new(flags: &Flags, arguments: &Arguments) -> Result<Tail, Failure> {
        let access = arguments.remote.access(flags, "operator")?;
        let is_own_token = access.is_own_token;
        Ok(Tail { reader: Reader::new(access)?, is_own_token, sources: Source::all() })
    }

    async fn follow(
        &mut self,
        flags: &Flags,
        arguments: &Arguments,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let (mut is_following, mut has_failed, mut renewed) = (false, false, false);
        let mut retry_pause = Duration::from_millis(250);
        while !stop.is_cancelled() {
            let started = Instant::now();
            match self.poll(arguments.since).await {
                Ok(mut events) => {
                    if !is_following || has_failed {
                        eprintln!("Following {}. Ctrl-C ends.", self.reader.server());
                    }
                    (is_following, has_failed, renewed) = (true, false, false);
                    retry_pause = Duration::from_millis(250);
                    events.sort_by_key(|event| event.at);
                    for event in &events {
                        line(if arguments.json { event.json() } else { event.text() });
                    }
                    tokio::time::sleep(POLL_PAUSE.max(started.elapsed() * PAUSE_FACTOR)).await;
                }
                Err(CallFailure::Retryable(message)) => {
                    if !has_failed {
                        eprintln!("{message} Trying again until it answers.");
                    }
                    has_failed = true;
                    tokio::time::sleep(retry_pause).await;
                    retry_pause = (retry_pause * 2).min(RETRY_PAUSE_MAX);
                }
                // A token that was created here has expired.
                Err(CallFailure::Refused { status: StatusCode::UNAUTHORIZED, .. })
                    if self.is_own_token && is_following && !renewed =>
                {
                    renewed = true;
                    self.reader = Reader::new(arguments.remote.access(flags, "operator")?)?;
                }
                Err(CallFailure::Refused { message, .. }) => return Err(Failure::Failed(message)),
            }
        }
        Ok(())
    }

    /// The new events of all sources. A source that the token may not read is left out from then on.
    async fn poll(&mut self, since_ms: Option<i64>) -> Result<Vec<Event>, CallFailure> {
        let mut events = Vec::new();
        let mut refused: Option<(&'static str, String)> = None;
        for source in self.sources.iter_mut().filter(|source| !source.is_left_out) {
            // One refusal is enough for all lists of a kind.
            if refused.as_ref().is_some_and(|(kind, _)| *kind == source.what()) {
                source.is_left_out = true;
                continue;
            }
            match source.read(&self.reader, since_ms).await {
                Ok(fresh) => events.extend(fresh),
                Err(CallFailure::Refused { status: StatusCode::FORBIDDEN, message }) => {
                    source.is_left_out = true;
                    eprintln!("Left out: {}. {message}", source.what());
                    refused = Some((source.what(), message));
                }
                // What other lists have answered counts as printed, so it is printed. The next poll reports the error.
                Err(_) if !events.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        match refused {
            Some((_, message)) if self.sources.iter().all(|source| source.is_left_out) => {
                Err(CallFailure::Refused { status: StatusCode::FORBIDDEN, message })
            }
            _ => Ok(events),
        }
    }
}
