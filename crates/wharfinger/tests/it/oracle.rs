//! Checks the invariants against the catalog, the content of the store and the counters of Redis.

use std::collections::BTreeSet;
use std::path::Path;

use futures::TryStreamExt as _;
use wharfinger_catalog::{Destination, Scope};
use wharfinger_lifecycle::id::TenantId;
use wharfinger_lifecycle::state::Status;

use crate::test_app::{TestApp, TestEnv};

/// The paths of all files below a folder, relative to it.
pub fn files_below(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let relative = path.strip_prefix(root).expect("below the root");
                let name = relative.to_str().expect("UTF-8").to_owned();
                // The marker of the store is no object.
                if name != ".wharfinger/store" {
                    found.insert(name);
                }
            }
        }
    }
    found
}

/// All objects in the store, local or remote, and all unfinished multipart uploads.
pub async fn stored(env: &TestEnv, server: &TestApp) -> BTreeSet<String> {
    if env.is_local() {
        return files_below(&env.blob_dir());
    }
    let listed = server.app.core.blobs.list("", None).map_ok(|listed| listed.key);
    let mut found: BTreeSet<String> = listed.try_collect().await.expect("a listing");
    found.remove(".wharfinger/store");
    if let Some(parts) = server.app.core.blobs.multipart() {
        let unfinished = parts.list_unfinished("").map_ok(|upload| format!("unfinished {}", upload.key));
        found.extend(unfinished.try_collect::<Vec<_>>().await.expect("a listing"));
    }
    found
}

/// I1, I2, I15, I16: the catalog is consistent at any time.
pub async fn catalog_is_sound(server: &TestApp) {
    assert_eq!(server.app.core.catalog.audit().await.expect("an audit"), Vec::<String>::new());
}

/// I7, after the sweep: each file without progress has a valid job and only waits.
pub async fn no_file_is_stuck(server: &TestApp) {
    let now = server.app.core.clock.now();
    let mut after = None;
    loop {
        let page =
            server.app.core.catalog.stuck_files(&Scope::All, (now, now), after, 1_000).await.expect("read");
        let Some(last) = page.last() else { return };
        after = Some(last.cursor);
        for file in &page {
            assert_eq!(file.fault, None, "{} is stuck: {file:?}", file.cursor.file);
        }
    }
}

/// I5, I6, without traffic and after a scan without a grace period: each object has a live row or a cleanup, and each
/// confirmed file has its objects.
pub async fn store_matches_catalog(env: &TestEnv, server: &TestApp) {
    let stored = stored(env, server).await;
    let known: BTreeSet<String> = env
        .texts(
            "SELECT o.key FROM objects o JOIN files f ON f.id = o.file_id WHERE f.pipeline_status <> 'deleted' \
             UNION SELECT file_path FROM pending_cleanups",
        )
        .await
        .into_iter()
        .collect();
    let needed = env
        .texts(
            "SELECT blob_path FROM files WHERE pipeline_status NOT IN ('registered', 'deleted') \
             UNION SELECT key FROM text_parts",
        )
        .await;
    let orphans: Vec<&String> = stored.difference(&known).collect();
    assert_eq!(orphans, Vec::<&String>::new(), "objects without a row or cleanup");
    let missing: Vec<&String> = needed.iter().filter(|key| !stored.contains(*key)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "live rows without their object");
}

/// After all windows and sweeps: each file is ready and has its object (I5), each object has a live row (I6, I9), and
/// the quota is the sum of the live files (I2, I3).
pub async fn all_is_healed(env: &TestEnv, server: &TestApp) {
    all_is_healed_at(env, server, "").await;
}

/// Like [`all_is_healed`], with the moment in each message.
pub async fn all_is_healed_at(env: &TestEnv, server: &TestApp, moment: &str) {
    catalog_is_sound(server).await;
    no_file_is_stuck(server).await;
    let mut live = BTreeSet::new();
    let mut charges = std::collections::BTreeMap::<String, u64>::new();
    for file in server.app.core.catalog.files(&Scope::All, None, 100_000).await.expect("files") {
        assert_eq!(file.status, Status::Ready, "{} is not ready {moment}", file.id);
        *charges.entry(file.tenant.to_string()).or_default() += file.size;
        live.insert(file.key.to_string());
        let parts = server.app.core.catalog.text_parts(file.id).await.expect("its text");
        live.extend(parts.into_iter().map(|part| part.key.to_string()));
    }
    let stored = stored(env, server).await;
    assert_eq!(stored, live, "the store has other objects than the live files {moment}");
    let cleanups = server.app.core.catalog.cleanup_counts(&Scope::All).await.expect("counts");
    assert_eq!((cleanups.pending, cleanups.exhausted), (0, 0), "a cleanup is not done {moment}");
    for tenant in server.app.core.catalog.tenants("", 100_000).await.expect("tenants") {
        let quota = server.app.core.catalog.quota(&tenant, 0).await.expect("a quota");
        assert_eq!(
            quota.used_bytes,
            charges.get(tenant.as_str()).copied().unwrap_or(0),
            "used bytes of {tenant} {moment}"
        );
        assert_eq!(quota.reserved_bytes, 0, "reserved bytes of {tenant} {moment}");
    }
    redis_heals(server, moment).await;
}

/// The bytes that Redis counts for a tenant, and the part of them that belongs to attempts with an unknown result.
async fn counted_by_redis(server: &TestApp, tenant: &TenantId) -> Option<(u64, u64)> {
    let url = server.app.core.settings.quota_redis.clone().expect("a URL");
    let client = redis::Client::open(url).expect("a URL of Redis");
    let timeout = Some(std::time::Duration::from_secs(60));
    let config =
        redis::AsyncConnectionConfig::new().set_response_timeout(timeout).set_connection_timeout(timeout);
    let mut redis = client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
    let [used, _, _, inflight, ..] = wharfinger_engines::redis_quota::keys("", tenant);
    let counted: Option<u64> = redis::cmd("GET").arg(&used).query_async(&mut redis).await.expect("read");
    let attempts: Vec<u64> = redis::cmd("HVALS").arg(&inflight).query_async(&mut redis).await.expect("read");
    counted.map(|counted| (counted, attempts.iter().sum()))
}

/// Sends all pending refunds to Redis. None may be left (I14).
async fn send_refunds(server: &TestApp, moment: &str) {
    let app = &server.app;
    app.quota.redis_owner.as_ref().expect("Redis").check_if_back().await;
    wharfinger::quota::refunds::relay(&app.quota).await.expect("refunds");
    let waiting = app.core.catalog.outbox_depth(Destination::Quota).await.expect("a number").0;
    assert_eq!(waiting, 0, "refunds are pending {moment}");
}

/// I2, I3, I14 without faults: Redis counts exactly the charges of the files, without a sync.
pub async fn redis_is_exact(server: &TestApp) {
    send_refunds(server, "").await;
    let app = &server.app;
    let tenants = app.core.catalog.tenants_in_redis("", 100_000).await.expect("tenants");
    assert!(!tenants.is_empty(), "Redis counts no tenant");
    for tenant in tenants {
        let quota =
            app.core.catalog.quota(&tenant, app.core.settings.default_quota_bytes).await.expect("a quota");
        let (counted, _) = counted_by_redis(server, &tenant).await.expect("a counter");
        assert_eq!(counted, quota.used_bytes, "bytes of {tenant} in Redis");
    }
}

/// The same after faults: Redis never counts too little, counts too much only for attempts with an unknown result, and
/// is exact after a sync.
pub async fn redis_heals(server: &TestApp, moment: &str) {
    let app = &server.app;
    let Some(owner) = &app.quota.redis_owner else { return };
    send_refunds(server, moment).await;
    for tenant in app.core.catalog.tenants_in_redis("", 100_000).await.expect("tenants") {
        let quota =
            app.core.catalog.quota(&tenant, app.core.settings.default_quota_bytes).await.expect("a quota");
        let used = quota.used_bytes;
        if let Some((counted, attempts)) = counted_by_redis(server, &tenant).await {
            assert!(counted >= used, "Redis counts {counted} bytes, the catalog {used} {moment}");
            assert!(
                counted.saturating_sub(attempts) <= used,
                "Redis counts {counted} bytes, {attempts} of them uncertain, the catalog {used} {moment}"
            );
        }
        wharfinger::quota::sync::tenant(&app.quota.quota_context(), Some(owner), &tenant)
            .await
            .expect("synced");
        let after = counted_by_redis(server, &tenant).await;
        assert_eq!(after, Some((used, 0)), "bytes of {tenant} in Redis {moment}");
    }
}
