//! `wharfinger migrate`: brings the schema up to date.

use clap::Args;
use wharfinger_calls::faults::Faults;
use wharfinger_catalog::SCHEMA_VERSION;

use super::output::line;
use super::{Failure, failed, migrated_catalog};
use crate::checks::messages::Broker;
use crate::config::{Flags, Settings};

#[derive(Args)]
pub(super) struct Arguments {
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let (catalog, applied) = migrated_catalog(&settings).await?;
    catalog.close().await;
    // Queues are declared long before anything depends on them: a broker that dies just after may lose what is new.
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
        line(format!("Applied {applied:?}; the schema is at step {SCHEMA_VERSION}."));
    }
    Ok(())
}
