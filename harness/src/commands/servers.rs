//! Starts all servers of the tests in parallel. Environment variables give their addresses to the test binaries.

use std::thread;

use harness::azurite::{self, Azurite};
use harness::clamd::{self, Clamd};
use harness::postgres::{self, Postgres};
use harness::rabbitmq::{self, RabbitMq};
use harness::radosgw::{self, Radosgw};
use harness::redis::{self, Redis};

use super::Outcome;

pub const NAMES: [&str; 7] = ["postgres", "pgvector", "s3", "azure", "redis", "rabbitmq", "clamd"];

/// The requested servers. They are stopped on drop.
#[derive(Default)]
pub struct Servers {
    pub postgres: Option<Postgres>,
    pub pgvector: Option<Postgres>,
    pub s3: Option<Radosgw>,
    pub azure: Option<Azurite>,
    pub redis: Option<Redis>,
    pub rabbitmq: Option<RabbitMq>,
    pub clamd: Option<Clamd>,
}

impl Servers {
    pub fn start(names: &[&str], postgres: postgres::Options) -> Outcome<Servers> {
        let is_wanted = |name| names.contains(&name);
        let pgvector = postgres::Options { pgvector: true, ..postgres };
        thread::scope(|scope| {
            macro_rules! starting {
                ($name:literal, $start:expr) => {
                    is_wanted($name).then(|| scope.spawn(move || $start))
                };
            }
            let postgres = starting!("postgres", Postgres::start_with(postgres));
            let pgvector = starting!("pgvector", Postgres::start_with(pgvector));
            let s3 = starting!("s3", Radosgw::start());
            let azure = starting!("azure", Azurite::start());
            let redis = starting!("redis", Redis::start());
            let rabbitmq = starting!("rabbitmq", RabbitMq::start());
            let clamd = starting!("clamd", Clamd::start(clamd::Options::default()));
            macro_rules! started {
                ($name:literal, $handle:expr) => {
                    match $handle.map(|handle| handle.join()) {
                        None => None,
                        Some(Ok(Ok(server))) => Some(server),
                        Some(Ok(Err(error))) => return Err(format!("cannot start {}: {error}", $name).into()),
                        Some(Err(_)) => {
                            return Err(format!("cannot start {}: its start panicked", $name).into())
                        }
                    }
                };
            }
            Ok(Servers {
                postgres: started!("PostgreSQL", postgres),
                pgvector: started!("PostgreSQL with pgvector", pgvector),
                s3: started!("the Ceph gateway", s3),
                azure: started!("Azurite", azure),
                redis: started!("Redis", redis),
                rabbitmq: started!("RabbitMQ", rabbitmq),
                clamd: started!("clamd", clamd),
            })
        })
    }

    /// The environment variables for other processes that share these servers.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let Servers { postgres, pgvector, s3, azure, redis, rabbitmq, clamd } = self;
        let shared = [
            (postgres::ADDRESS_VARIABLE, postgres.as_ref().map(Postgres::admin_url)),
            (postgres::PGVECTOR_ADDRESS_VARIABLE, pgvector.as_ref().map(Postgres::admin_url)),
            (radosgw::ADDRESS_VARIABLE, s3.as_ref().map(Radosgw::url)),
            (radosgw::CONFIGURATION_VARIABLE, s3.as_ref().and_then(Radosgw::configuration)),
            (azurite::ADDRESS_VARIABLE, azure.as_ref().map(Azurite::url)),
            (redis::ADDRESS_VARIABLE, redis.as_ref().map(Redis::url)),
            (rabbitmq::ADDRESS_VARIABLE, rabbitmq.as_ref().map(RabbitMq::sharing_url)),
            (clamd::ADDRESS_VARIABLE, clamd.as_ref().map(Clamd::sharing_url)),
        ];
        shared.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}
