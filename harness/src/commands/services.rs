//! `cargo xtask services`: starts the servers of the tests for manual use.

use std::io;

use harness::postgres::{self, Postgres};

use super::Outcome;
use super::servers::{NAMES, Servers};

/// Starts the servers and stops them at the end of input. Ctrl-C ends this process without cleanup. The watchdogs of
/// the servers then stop them.
pub fn run(names: &[&str]) -> Outcome {
    if let Some(unknown) = names.iter().find(|name| !NAMES.contains(name)) {
        return Err(format!("unknown service `{unknown}`: choose from {}", NAMES.join(", ")).into());
    }
    let names = if names.is_empty() { &NAMES } else { names };
    let servers = Servers::start(names, postgres::Options::default())?;
    print_settings(&servers)?;
    for (name, value) in servers.environment() {
        println!("{name}={value}");
    }
    println!("Press Ctrl-C to stop them.");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// Prints the settings with which Wharfinger uses them.
fn print_settings(servers: &Servers) -> Outcome {
    if let Some(postgres) = &servers.postgres {
        print_version(postgres)?;
        println!("WHARFINGER_DATABASE_URL={}", postgres.create_database());
    }
    if let Some(pgvector) = &servers.pgvector {
        print_version(pgvector)?;
    }
    if let Some(s3) = &servers.s3 {
        println!("S3 (radosgw) on port {}, with an empty bucket", s3.port());
        println!("WHARFINGER_BLOB_URL=s3://{}", s3.create_bucket());
        println!("AWS_ENDPOINT_URL={}", s3.endpoint());
        println!("AWS_ACCESS_KEY_ID={}", s3.access_key());
        println!("AWS_SECRET_ACCESS_KEY={}", s3.secret_key());
        println!("AWS_REGION={}", s3.region());
    }
    if let Some(azure) = &servers.azure {
        println!("Azure (Azurite) on port {}, with an empty container", azure.port());
        println!("WHARFINGER_BLOB_URL=az://{}", azure.create_container());
        println!("AZURE_STORAGE_ENDPOINT={}", azure.endpoint());
        println!("AZURE_STORAGE_ACCOUNT_NAME={}", azure.account());
        println!("AZURE_STORAGE_ACCOUNT_KEY={}", azure.key());
    }
    if let Some(redis) = &servers.redis {
        println!("Redis on port {}", redis.port());
        println!("WHARFINGER_QUOTA_URL={}", redis.url());
    }
    if let Some(rabbitmq) = &servers.rabbitmq {
        println!("RabbitMQ on port {}", rabbitmq.port());
        println!("WHARFINGER_BROKER_URL={}", rabbitmq.url());
    }
    if let Some(clamd) = &servers.clamd {
        println!("clamd on port {}, with test signatures only", clamd.port());
        println!("CLAMD_URL={}", clamd.tcp_url());
    }
    Ok(())
}

fn print_version(postgres: &Postgres) -> Outcome {
    println!("PostgreSQL {} on port {}", postgres.version()?, postgres.port());
    Ok(())
}
