//! Objects without rows and rows without objects, on local disk: which the scan finds and which it ignores.

use super::{DAY_MS, HOUR_MS, UNLIMITED, exists, key_of, plant, plant_foreign, scan, stored, unknown_key};
use crate::oracle;
use crate::test_app::{Database, TestApp, TestEnv, on_each_database};
use wharfinger::core::Role;
use wharfinger::sweeps::orphan_blobs::run;
use wharfinger::sweeps::{SweepLease, orphan_blobs, upload_window};

async fn uploads(server: &TestApp, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(server.me().upload("cargo", b"bytes").await);
    }
    ids
}

async fn an_orphan_is_deleted_after_the_grace_period(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    uploads(&server, 5).await;
    plant(&env, &unknown_key(1), DAY_MS - 60_000);
    let none = scan(&server).await;
    assert_eq!((none.total, none.deleted, none.errors, none.listed), (0, 0, 0, 6));
    assert!(exists(&env, &unknown_key(1)), "the grace period has not ended");

    plant(&env, &unknown_key(1), DAY_MS + 1_000);
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.errors), (1, 1, 0));
    oracle::all_is_healed(&env, &server).await;
    let again = scan(&server).await;
    assert_eq!(
        (again.total, again.deleted, again.errors, again.listed),
        (0, 0, 0, 5),
        "a second scan finds nothing"
    );
}

async fn a_late_object_of_a_deleted_file_has_no_grace_period(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    uploads(&server, 3).await;
    let file = server.me().upload("cargo", b"bytes").await;
    server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    // The object is no orphan while its cleanup is pending.
    assert_eq!(scan(&server).await.total, 0);
    assert!(exists(&env, &key_of(&file)));
    server.settle().await;
    assert!(!exists(&env, &key_of(&file)));
    assert_eq!(scan(&server).await.total, 0);

    plant(&env, &key_of(&file), 0);
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted), (1, 1));
    oracle::all_is_healed(&env, &server).await;
}

async fn unconfirmed_uploads_are_not_orphans(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let waiting = server.me().init("cargo", 5).await.expect(201);
    let absent = server.me().init("cargo", 5).await.expect(201);
    server.put_bytes(&waiting, b"bytes").await.expect(200);
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.missing, seen.listed), (0, 0, 1));
    server.me().confirm(waiting["fileId"].as_str().expect("an id")).await.expect(200);
    server
        .me()
        .confirm(absent["fileId"].as_str().expect("an id"))
        .await
        .expect_problem(409, "object_missing");
}

/// Objects whose keys this program does not create are foreign.
async fn foreign_objects_are_kept_and_counted(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    uploads(&server, 3).await;
    let foreign = [
        "uploads/other.bin",
        "uploads/a/b/c/d",
        "uploads/a b/it's ü %41.txt",
        "uploads/t/u/no-id",
        "uploads/t/u2",
        "uploads/x..y/z",
        "derived/t/u/x",
        "derived/~",
    ];
    // Hidden names belong to the file system.
    let outside =
        ["uploads2/x", "upload/x", "uploads.bak", "derived2/x", "RAW/2026/x", "other", "uploads/t/.nfs01"];
    for key in foreign.iter().chain(&outside) {
        plant(&env, key, 2 * DAY_MS);
    }
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.errors, found.foreign), (0, 0, 0, 8));
    assert_eq!(found.listed, 11, "objects outside our prefixes are not listed");
    for key in foreign.iter().chain(&outside) {
        assert!(exists(&env, key), "{key}");
    }
}

/// An object with a valid key that is older than our claim of the store may belong to another installation.
async fn an_object_older_than_the_marker_is_kept(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    uploads(&server, 3).await;
    plant_foreign(&env, &unknown_key(1), 2 * DAY_MS);
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.foreign), (0, 0, 1));
    assert!(exists(&env, &unknown_key(1)));
    let dry = run(&server.app.core, &SweepLease::dry_run(&server.app.core)).await.expect("a dry run");
    assert_eq!((dry.total, dry.foreign, dry.samples.len()), (0, 1, 0));

    // Now the marker is older than the object, so the object is ours.
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    assert_eq!(scan(&server).await.deleted, 1);
}

/// The deletion log has one line with the reason for each deleted object, and no other lines.
async fn each_deleted_object_is_in_the_deletion_log(database: Database) {
    let env = TestEnv::with_stages(database, "extract,chunk", &[UNLIMITED, ("DELETION_LOG_DAYS", "2")]);
    let server = env.start().await;
    let file = server.me().enqueue("letter.txt", b"a letter of some words").await;
    server.me().enqueue("kept.txt", b"another").await;
    server.settle().await;
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    assert_eq!(scan(&server).await.deleted, 1);
    let lines = "SELECT COUNT(*) FROM deletion_log";
    assert_eq!(env.scalar(lines).await, 1);
    let orphan = format!("{lines} WHERE key = '{}' AND reason = 'orphan_blob' AND size = 7", unknown_key(1));
    assert_eq!(env.scalar(&orphan).await, 1);

    server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    assert_eq!(env.scalar(lines).await, 1, "the bytes are not deleted yet");
    env.advance(HOUR_MS);
    server.settle().await;
    assert_eq!(env.scalar(lines).await, 3, "one line for the upload, one for its derived objects");
    let original = format!("{lines} WHERE key = '{}' AND file_id = '{file}' AND size = 22", key_of(&file));
    assert_eq!(env.scalar(&original).await, 1);
    let derived = format!("{lines} WHERE key = 'derived/t/u/{file}/' AND file_id = '{file}' AND objects = 1");
    assert_eq!(env.scalar(&derived).await, 1);

    env.advance(3 * 24 * HOUR_MS);
    server.settle().await;
    upload_window::run(&server.app.uploads, &SweepLease::unleased(&server.app.core)).await.expect("a sweep");
    assert_eq!(env.scalar(lines).await, 0, "lines of the log expire too");
}

/// A key that no store accepts does not stop the deletion of orphans.
async fn objects_with_invalid_keys_are_foreign(database: Database) {
    let env = TestEnv::with(database, &[("ORPHAN_DELETE_LIMIT_PERCENT", "20")]);
    let server = env.start().await;
    uploads(&server, 3).await;
    let invalid = ["uploads/a\\b", "uploads/t/line\nbreak", "derived/\u{1}"];
    for key in invalid {
        plant(&env, key, 2 * DAY_MS);
    }
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    let found = scan(&server).await;
    assert_eq!(
        (found.total, found.deleted, found.errors, found.foreign, found.stopped),
        (1, 1, 0, 3, None),
        "1 of 7 objects is an orphan: below the limit of 20 %"
    );
    let again = scan(&server).await;
    assert_eq!((again.total, again.deleted, again.errors, again.foreign), (0, 0, 0, 3));
    assert!(invalid.iter().all(|key| exists(&env, key)));
}

/// These names sort differently by bytes than by language rules, and some are prefixes of others. A wrong order would
/// report live objects as orphans.
async fn keys_are_ordered_by_their_bytes(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let tenants =
        ["images", "images2", "images-2", "Images", "images.", "im", "ü", "~", "a/b", "%", "z z", "i_"];
    for tenant in tenants {
        for user in ["u", "U", "u.", "u0", "-"] {
            server.as_user(tenant, user, Role::User).upload("cargo", b"bytes").await;
        }
    }
    let before = stored(&env);
    let id = "00000000-0000-7000-8000-000000000001";
    for owner in ["images%21/x", "images/x", "imagesz/u", "images/u%2Dx"] {
        plant(&env, &format!("uploads/{owner}/{id}"), 1);
    }
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.missing, found.listed), (3, 3, 0, 64));
    assert_eq!(found.foreign, 1, "our keys do not encode a dash");
    std::fs::remove_dir_all(env.blob_dir().join("uploads/images/u%2Dx")).expect("the foreign object");
    assert_eq!(stored(&env), before);
    let in_default_pages =
        orphan_blobs::run(&server.app.core, &SweepLease::unleased(&server.app.core)).await.expect("a scan");
    assert_eq!((in_default_pages.total, in_default_pages.missing, in_default_pages.listed), (0, 0, 60));
}

async fn a_missing_object_is_reported_until_it_is_back(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let ids = uploads(&server, 3).await;
    let path = env.blob_dir().join(key_of(&ids[1]));
    let backup = env.folder().join("backup");
    let missing = async || {
        let seen = me.get("/api/v2/uploads/orphans").await.expect(200);
        let samples = seen["missingBlobs"]["details"].as_array().expect("a list").clone();
        assert_eq!(seen["missingBlobs"]["count"], samples.len());
        samples
            .into_iter()
            .map(|sample| sample["fileId"].as_str().expect("an id").to_owned())
            .collect::<Vec<_>>()
    };
    std::fs::rename(&path, &backup).expect("the object is moved");
    for _ in 0..2 {
        let seen = scan(&server).await;
        assert_eq!((seen.total, seen.missing, seen.deleted), (0, 1, 0));
        assert_eq!(missing().await, [ids[1].clone()]);
    }
    assert_eq!(me.file(&ids[1]).await["status"], "ready", "a missing object deletes no file");

    std::fs::rename(&backup, &path).expect("the object is restored");
    assert_eq!(scan(&server).await.missing, 0);
    assert_eq!(missing().await, Vec::<String>::new());
    assert_eq!(env.scalar("SELECT COUNT(*) FROM missing_blobs").await, 0);

    std::fs::remove_file(&path).expect("the object is removed");
    scan(&server).await;
    assert_eq!(missing().await.len(), 1);
    me.delete(&format!("/api/v2/files/{}", ids[1])).await.expect(204);
    assert_eq!(missing().await.len(), 0, "a deleted file misses no object");
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// An object of a completed stage must exist. An object of a failed attempt need not.
async fn derived_objects_are_compared_too(database: Database) {
    let settings = [UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")];
    let env = TestEnv::with_stages(database, "extract,chunk", &settings);
    let server = env.start().await;
    server.me().enqueue("letter.txt", b"a letter of some words").await;
    server.settle().await;
    let derived: Vec<String> = stored(&env).into_iter().filter(|key| key.starts_with("derived/")).collect();
    assert_eq!(derived.len(), 1);
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.missing, seen.listed), (0, 0, 2));

    std::fs::remove_file(env.blob_dir().join(&derived[0])).expect("the object is removed");
    assert_eq!(scan(&server).await.missing, 1);
    env.execute("DELETE FROM text_parts").await;
    assert_eq!(scan(&server).await.missing, 0, "no row needs the object");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM missing_blobs").await, 0);
}

async fn a_dry_run_deletes_nothing(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    let ids = uploads(&server, 3).await;
    std::fs::remove_file(env.blob_dir().join(key_of(&ids[0]))).expect("the object is removed");
    for n in 0..30 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let before = stored(&env);
    let dry = run(&server.app.core, &SweepLease::dry_run(&server.app.core)).await.expect("a dry run");
    assert_eq!((dry.total, dry.deleted, dry.errors, dry.missing, dry.listed), (30, 0, 0, 1, 32));
    assert_eq!((dry.samples.len(), dry.samples[0].clone()), (20, unknown_key(0)));
    assert_eq!(stored(&env), before);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM pending_cleanups").await, 0);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM orphan_blobs WHERE queued_at IS NULL").await, 30);
    assert_eq!(env.scalar("SELECT COUNT(*) FROM missing_blobs").await, 1);
    let shown = serde_json::to_value(&dry).expect("JSON");
    assert_eq!((&shown["total"], &shown["deleted"], &shown["errors"]), (&30.into(), &0.into(), &0.into()));
    assert_eq!(scan(&server).await.deleted, 30);
}

/// There are more tombstones than objects in the store.
async fn tombstones_are_skipped(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let kept = uploads(&server, 2).await;
    for id in uploads(&server, 20).await {
        server.me().delete(&format!("/api/v2/files/{id}")).await.expect(204);
    }
    server.settle().await;
    let last = uploads(&server, 2).await;
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.missing, seen.listed), (0, 0, 4));
    env.advance(HOUR_MS);
    for id in kept.iter().chain(&last) {
        assert!(exists(&env, &key_of(id)));
    }
}

/// A link to a folder on another disk and a dangling link: neither is an object.
async fn links_to_folders_are_ignored(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let id = uploads(&server, 1).await.remove(0);
    let (link, target) = (env.blob_dir().join("uploads/t"), env.folder().join("another disk"));
    std::fs::rename(&link, &target).expect("moved");
    std::os::unix::fs::symlink(&target, &link).expect("linked");
    std::os::unix::fs::symlink("nowhere", env.blob_dir().join("uploads/dangling")).expect("linked");
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.deleted, seen.missing), (0, 0, 0), "{seen:?}");
    assert!(link.is_symlink() && exists(&env, &key_of(&id)));
    server.me().get(&format!("/api/v2/files/{id}/download")).await.expect(302);
}

on_each_database!(
    links_to_folders_are_ignored,
    an_orphan_is_deleted_after_the_grace_period,
    a_late_object_of_a_deleted_file_has_no_grace_period,
    unconfirmed_uploads_are_not_orphans,
    foreign_objects_are_kept_and_counted,
    an_object_older_than_the_marker_is_kept,
    each_deleted_object_is_in_the_deletion_log,
    objects_with_invalid_keys_are_foreign,
    keys_are_ordered_by_their_bytes,
    a_missing_object_is_reported_until_it_is_back,
    derived_objects_are_compared_too,
    a_dry_run_deletes_nothing,
    tombstones_are_skipped,
);
