//! `wharfinger migrate`: brings the schema up to date.

use clap::Args;
use wharfinger_backends::catalog::SCHEMA_VERSION;

use super::output::line;
use super::{Failure, failed};
use crate::config::{Flags, Settings};

#[derive(Args)]
pub(super) struct Arguments {
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    std::fs::create_dir_all(&settings.data_dir).map_err(failed)?;
    let catalog = wharfinger_backends::catalog::Catalog::open(wharfinger_backends::catalog::CatalogOptions {
        url: settings.database.clone(),
        faults: wharfinger_backends::faults::Faults::none(),
        storage_type: "disk",
        cleanup_max_attempts: settings.cleanup_max_attempts,
        connections_max: 2,
    })
    .await
    .map_err(failed)?;
    let applied = catalog.migrate(crate::clock::Clock::system().now()).await.map_err(failed)?;
    catalog.close().await;
    if arguments.json {
        line(format!("{}", serde_json::json!({ "schema": SCHEMA_VERSION, "applied": applied })));
    } else if applied.is_empty() {
        line(format!("The schema is up to date (step {SCHEMA_VERSION})."));
    } else {
        line(format!("Applied {applied:?}; the schema is at step {SCHEMA_VERSION}."));
    }
    Ok(())
}
