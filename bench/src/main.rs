//! `cargo run --release -p wharfinger-bench -- <uploads|jobs|idle|list|s3|put|engines|pipeline|stages|stuck>`: each prints its figures next to a limit
//! that was measured in the same run, because this kind of machine is noisy and only ratios travel.

mod catalog;
mod engines;
mod idle;
mod jobs;
mod limits;
mod list;
mod pipeline;
mod s3;
mod server;
mod stages;
mod stuck;
mod timing;
mod uploads;

#[tokio::main]
async fn main() -> std::process::ExitCode {
    wharfinger_backends::tls::ready();
    match std::env::args().nth(1).as_deref() {
        Some("uploads") => uploads::run().await,
        Some("jobs") => jobs::run().await,
        Some("engines") => engines::run().await,
        Some("idle") => idle::run().await,
        Some("list") => list::run().await,
        Some("pipeline") => pipeline::run().await,
        Some("stages") => stages::run().await,
        Some("stuck") => stuck::run().await,
        Some("s3") => s3::run().await,
        Some("put") => s3::put::run().await,
        _ => {
            eprintln!(
                "usage: wharfinger-bench uploads | jobs | idle | list | s3 | put | engines | pipeline | stages | stuck"
            );
            return std::process::ExitCode::from(2);
        }
    }
    std::process::ExitCode::SUCCESS
}
