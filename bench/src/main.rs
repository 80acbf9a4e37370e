//! `cargo run --release -p wharfinger-bench -- NAME`: each measurement prints its figures beside a limit from the same
//! run, because such machines are noisy and only ratios can be compared.

mod abandoned;
mod attacks;
mod backlog;
mod catalog;
mod dashboard;
mod engines;
mod events;
mod idle;
mod jobs;
mod limits;
mod list;
mod neighbours;
mod orphans;
mod pipeline;
mod reconcile;
mod s3;
mod search;
mod server;
mod stages;
mod stuck;
mod timing;
mod uploads;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    wharfinger_calls::tls::install_provider();
    match std::env::args().nth(1).as_deref() {
        Some("uploads") => uploads::run().await,
        Some("jobs") => jobs::run().await,
        Some("backlog") => backlog::run().await,
        Some("engines") => engines::run().await,
        Some("idle") => idle::run().await,
        Some("attacks") => attacks::run().await,
        Some("neighbours") => neighbours::run().await,
        Some("list") => list::run().await,
        Some("orphans") => orphans::run().await,
        Some("reconcile") => reconcile::run().await,
        Some("pipeline") => pipeline::run().await,
        Some("stages") => stages::run().await,
        Some("stuck") => stuck::run().await,
        Some("abandoned") => abandoned::run().await,
        Some("dashboard") => dashboard::run().await,
        Some("events") => events::run().await,
        Some("spool") => events::spool::run(),
        Some("outage") => events::outage::run().await,
        Some("search") => search::run().await,
        Some("s3") => s3::run().await,
        Some("put") => s3::put::run().await,
        _ => {
            eprintln!(
                "usage: wharfinger-bench uploads | jobs | backlog | idle | list | neighbours | attacks | s3 | put | engines | pipeline | stages | search | orphans | reconcile | stuck | abandoned | events | spool | outage | dashboard"
            );
            return std::process::ExitCode::from(2);
        }
    }
    std::process::ExitCode::SUCCESS
}
