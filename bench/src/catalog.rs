//! A fresh catalog with its schema.

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{Catalog, CatalogOptions, CatalogUrl, DEFAULT_SCHEMA, OutboxTargets};

pub(crate) async fn fresh(url: CatalogUrl) -> Catalog {
    let options = CatalogOptions {
        url,
        schema: DEFAULT_SCHEMA.into(),
        faults: Faults::none(),
        storage_type: "disk",
        cleanup_max_attempts: 5,
        job_max_attempts: 5,
        connections_max: 20,
        with_redis_quota: false,
        targets: OutboxTargets::default(),
    };
    let catalog = Catalog::open(options).await.expect("a catalog");
    catalog.migrate(1).await.expect("the schema");
    catalog
}
