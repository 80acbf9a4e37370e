//! `wharfinger sweep`: runs one sweep now. Servers may run at the same time.

use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::interrupt::cancelled_by_ctrl_c;
use super::output::line;
use super::{Failure, failed};
use crate::app::App;
use crate::clock::{Clock, rfc3339};
use crate::config::{Flags, Settings, prepare_secrets};
use crate::core::OpenError;
use crate::sweeps::{ManualRun, Sweep, SweepRun, SweepRunError, run_now};
use crate::telemetry;

#[derive(Args)]
pub(super) struct Arguments {
    /// The name of the sweep
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(Sweep::ALL.map(Sweep::name)))]
    name: String,
    /// Report what the sweep would do, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const DRAW_EVERY: Duration = Duration::from_millis(200);
const PRINT_EVERY: Duration = Duration::from_secs(10);

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let sweep = Sweep::named(&arguments.name)
        .ok_or_else(|| Failure::Usage(format!("there is no sweep `{}`", arguments.name)))?;
    let settings = Settings::load(flags)?;
    telemetry::log_to_stderr("info", &settings.instance_id);
    let secrets = prepare_secrets(&settings)?;
    let app =
        App::open_for_command(settings, &secrets, Clock::system()).await.map_err(|error| match error {
            OpenError::Setting(bad) => Failure::from(bad),
            other => failed(other),
        })?;
    // After Ctrl-C the sweep ends at the next safe point.
    let manual = ManualRun {
        by: "command line".into(),
        is_dry_run: arguments.dry_run,
        stop: cancelled_by_ctrl_c()?,
        ..ManualRun::default()
    };
    let ran = tokio::select! {
        ran = run_now(&app.uploads, sweep, &manual) => ran,
        () = print_progress(sweep, &manual, arguments.json) => unreachable!("it never ends by itself"),
    };
    let ran = ran.map_err(|not_run| match not_run {
        SweepRunError::Busy { owner, lease_until } => Failure::Failed(format!(
            "{} is already running in process {owner}. If that process is dead, its lease ends at {}",
            sweep.name(),
            rfc3339(lease_until)
        )),
        SweepRunError::Failed(error) => {
            Failure::Failed(format!("{} failed: {}", sweep.name(), error.with_cause()))
        }
    })?;
    let problem = ran.report.error_summary();
    show(sweep, &arguments, &ran);
    app.core.catalog.clone().close().await;
    match problem {
        None => Ok(()),
        Some(problem) => Err(Failure::Failed(format!("{}: {problem}", sweep.name()))),
    }
}

/// Never ends by itself.
async fn print_progress(sweep: Sweep, manual: &ManualRun, json: bool) {
    let checked = || manual.items.load(Ordering::Relaxed);
    if std::io::stderr().is_terminal() && !json {
        let spinner = ProgressBar::new_spinner();
        loop {
            spinner.set_message(format!("{}: {} checked", sweep.name(), checked()));
            spinner.tick();
            tokio::time::sleep(DRAW_EVERY).await;
        }
    }
    loop {
        tokio::time::sleep(PRINT_EVERY).await;
        if !json {
            eprintln!("{}: {} checked", sweep.name(), checked());
        }
    }
}

fn show(sweep: Sweep, arguments: &Arguments, ran: &SweepRun) {
    let result = serde_json::to_value(&ran.report).unwrap_or_default();
    let duration_ms = ran.ended_at - ran.started_at;
    if arguments.json {
        let view = json!({
            "name": sweep.name(),
            "dryRun": arguments.dry_run,
            "startedAt": rfc3339(ran.started_at),
            "duration": duration_ms,
            "result": result,
            "error": ran.report.error_summary(),
        });
        line(view.to_string());
        return;
    }
    let outcome = if arguments.dry_run { "dry run, nothing was changed" } else { "done" };
    line(format!("{}: {outcome}, {duration_ms} ms", sweep.name()));
    show_members("", &result);
}

/// Prints one line per figure, nested ones with their path.
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
