//! `wharfinger migrate`: creates or updates the database schema, and declares the queues of the broker.

use clap::Args;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::SCHEMA_VERSION;

use super::output::line;
use super::{Failure, failed, migrated_catalog};
use crate::checks::messages::Broker;
use crate::config::{Flags, Settings};

#[derive(Args)]
pub(super) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let (catalog, applied) = migrated_catalog(&settings).await?;
    catalog.close().await;
    // Queues are declared early: a broker that dies right after the declaration may lose a new queue.
    if let Some(broker) = Broker::open(&settings, &Faults::none()).await.map_err(failed)? {
        let declared = broker.rabbit.check().await;
        broker.rabbit.close().await;
        declared.map_err(|error| Failure::Failed(format!("WHARFINGER_BROKER_URL: {error}")))?;
    }
    if arguments.json {
        line(format!("{}", serde_json::json!({ "schema": SCHEMA_VERSION, "applied": applied })));
    } else if applied.is_empty() {
        line(format!("The schema is up to date (step {SCHEMA_VERSION})."));
    } else {
        let applied: Vec<String> = applied.iter().map(i64::to_string).collect();
        line(format!("Applied step {}. The schema is at step {SCHEMA_VERSION}.", applied.join(", ")));
    }
    Ok(())
}
