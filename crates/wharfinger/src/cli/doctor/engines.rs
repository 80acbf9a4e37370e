//! Checks the optional engines: Redis for quotas, RabbitMQ for delayed checks, clamd and embeddings.

use std::time::Duration;

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, Destination};
use wharfinger_engines::embeddings::{Embeddings, EmbeddingsOptions};
use wharfinger_engines::rabbitmq::Rabbit;
use wharfinger_engines::redis_quota::{QuotaError, RedisQuota};
use wharfinger_engines::scanner::Scanner;
use wharfinger_lifecycle::stage::Stage;

use super::{Finding, bad, good};
use crate::checks::messages::rabbit_options;
use crate::config::Settings;

pub(super) async fn check(settings: &Settings, catalog: Option<&Catalog>, findings: &mut Vec<Finding>) {
    check_redis(settings, findings).await;
    check_rabbit(settings, findings).await;
    check_scanner(settings, findings).await;
    check_embeddings(settings, findings).await;
    let Some(catalog) = catalog else { return };
    for (what, destination) in [("quota", Destination::Quota), ("broker", Destination::Broker)] {
        match catalog.outbox_depth(destination).await {
            Ok((0, _)) => {}
            Ok((waiting, _)) => {
                findings.push(good(what, format!("{waiting} outbox lines wait to be sent")));
            }
            Err(error) => findings.push(bad(what, error)),
        }
    }
}

async fn check_redis(settings: &Settings, findings: &mut Vec<Finding>) {
    let Some(url) = &settings.quota_redis else { return };
    let checked = async {
        let redis = RedisQuota::new(url, "doctor".into(), Faults::none())?
            .with_prefix(&settings.redis_prefix)
            .with_timeout(Duration::from_millis(settings.quota_redis_timeout_ms));
        let version = redis.check().await.map_err(|error| match error {
            QuotaError::Unavailable(why) => QuotaError::Unavailable(format!("{} ({why})", redis.address())),
            refused => refused,
        })?;
        Ok::<_, QuotaError>(format!("Redis {version} at {} answers and runs the scripts", redis.address()))
    };
    findings.push(match checked.await {
        Ok(detail) => good("quota", detail),
        Err(error) => bad("quota", format!("WHARFINGER_QUOTA_URL: {error}{}", without_redis(settings))),
    });
}

fn without_redis(settings: &Settings) -> &'static str {
    match settings.quota_fails_closed {
        true => ". Until this is fixed, all uploads are refused",
        false => ". Until this is fixed, the database admits uploads",
    }
}

async fn check_scanner(settings: &Settings, findings: &mut Vec<Finding>) {
    let Some(url) = settings.pipeline.clamd_url.as_ref().filter(|_| has(settings, Stage::Scan)) else {
        return;
    };
    let checked = match Scanner::clamd(url) {
        Ok(scanner) => scanner.check().await.map_err(|error| error.to_string()),
        Err(problem) => Err(problem),
    };
    findings.push(match checked {
        Ok(version) => good("clamd", format!("{version} answers")),
        Err(why) => bad("clamd", format!("CLAMD_URL: {why}. Until this is fixed, files wait to be scanned")),
    });
}

/// Sends one small request, which the provider may bill.
async fn check_embeddings(settings: &Settings, findings: &mut Vec<Finding>) {
    let endpoint = settings.pipeline.embeddings.as_ref().filter(|_| has(settings, Stage::Embed));
    let Some(endpoint) = endpoint else { return };
    let options = EmbeddingsOptions {
        url: endpoint.url.clone(),
        model: endpoint.model.clone(),
        api_key: endpoint.api_key.clone(),
    };
    let checked = match Embeddings::new(options) {
        Ok(embeddings) => embeddings.check().await.map_err(|error| error.to_string()),
        Err(problem) => Err(problem),
    };
    findings.push(match checked {
        Ok(answer) => good("embeddings", answer),
        Err(why) => bad("embeddings", format!("EMBEDDINGS_URL: {why}")),
    });
}

fn has(settings: &Settings, stage: Stage) -> bool {
    settings.pipeline.stages.contains(&stage)
}

async fn check_rabbit(settings: &Settings, findings: &mut Vec<Finding>) {
    let Some(options) = rabbit_options(settings, &Faults::none()) else { return };
    findings.push(match Rabbit::open(options).await {
        Ok(rabbit) => {
            let version = rabbit.version().unwrap_or_default();
            rabbit.close().await;
            good("broker", format!("RabbitMQ {version} answers, its queues are declared"))
        }
        Err(error) => bad(
            "broker",
            format!(
                "WHARFINGER_BROKER_URL: {error}. Until this is fixed, the database is polled for delayed checks"
            ),
        ),
    });
}
