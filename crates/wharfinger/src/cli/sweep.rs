//! `wharfinger sweep`: one sweep now, beside whatever servers run.

use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::interrupt::stopped_by_hand;
use super::output::line;
use super::{Failure, failed};
use crate::app::App;
use crate::clock::{Clock, rfc3339};
use crate::config::{Flags, Settings, prepare_secrets};
use crate::core::OpenError;
use crate::sweeps::{ByHand, NotRun, Ran, Sweep, run_now};
use crate::telemetry;

#[derive(Args)]
pub(super) struct Arguments {
    /// The sweep's name
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(Sweep::ALL.map(Sweep::name)))]
    name: String,
    /// Find everything and change nothing
    #[arg(long)]
    dry_run: bool,
    /// One line of JSON instead of words
    #[arg(long)]
    json: bool,
}

const DRAW_EVERY: Duration = Duration::from_millis(200);
const TELL_EVERY: Duration = Duration::from_secs(10);

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let sweep = Sweep::named(&arguments.name)
        .ok_or_else(|| Failure::Usage(format!("no sweep is called {}", arguments.name)))?;
    let settings = Settings::load(flags)?;
    telemetry::log_to_stderr("info");
    let secrets = prepare_secrets(&settings)?;
    let app = App::open_beside(settings, &secrets, Clock::system()).await.map_err(|error| match error {
        OpenError::Setting(bad) => Failure::from(bad),
        other => failed(other),
    })?;
    // Told to stop, it ends at the next safe point.
    let by_hand = ByHand { is_dry_run: arguments.dry_run, stop: stopped_by_hand()?, ..ByHand::default() };
    let ran = tokio::select! {
        ran = run_now(&app.uploads, sweep, &by_hand) => ran,
        () = tell_progress(sweep, &by_hand, arguments.json) => unreachable!("progress is told until the end"),
    };
    let ran = ran.map_err(|not_run| match not_run {
        NotRun::Busy { owner, lease_until } => Failure::Failed(format!(
            "{owner} is at {}; if that process is dead, its lease ends at {}",
            sweep.name(),
            rfc3339(lease_until)
        )),
        NotRun::Failed(error) => Failure::Failed(format!("{} failed: {error:?}", sweep.name())),
    })?;
    let trouble = ran.report.trouble();
    show(sweep, &arguments, &ran);
    app.core.catalog.clone().close().await;
    match trouble {
        None => Ok(()),
        Some(trouble) => Err(Failure::Failed(format!("{}: {trouble}", sweep.name()))),
    }
}

/// Never ends by itself.
async fn tell_progress(sweep: Sweep, by_hand: &ByHand, json: bool) {
    let looked_at = || by_hand.items.load(Ordering::Relaxed);
    if std::io::stderr().is_terminal() && !json {
        let spinner = ProgressBar::new_spinner();
        loop {
            spinner.set_message(format!("{}: {} looked at", sweep.name(), looked_at()));
            spinner.tick();
            tokio::time::sleep(DRAW_EVERY).await;
        }
    }
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        if !json {
            eprintln!("{}: {} looked at", sweep.name(), looked_at());
        }
    }
}

fn show(sweep: Sweep, arguments: &Arguments, ran: &Ran) {
    let result = serde_json::to_value(&ran.report).unwrap_or_default();
    let duration_ms = ran.ended_at - ran.started_at;
    if arguments.json {
        let view = json!({
            "name": sweep.name(),
            "dryRun": arguments.dry_run,
            "startedAt": rfc3339(ran.started_at),
            "duration": duration_ms,
            "result": result,
            "error": ran.report.trouble(),
        });
        line(view.to_string());
        return;
    }
    let how = if arguments.dry_run { "dry run, nothing was changed" } else { "done" };
    line(format!("{}: {how}, {duration_ms} ms", sweep.name()));
    show_members("", &result);
}

/// One line per number, nested ones by their path.
fn show_members(path: &str, value: &Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                show_members(&path, member);
            }
        }
        other => line(format!("  {path}: {other}")),
    }
}
