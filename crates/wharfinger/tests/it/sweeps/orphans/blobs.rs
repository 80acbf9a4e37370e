//! Objects without rows and rows without objects, on local disk: what is found, and what is left alone.

use super::{DAY_MS, HOUR_MS, UNLIMITED, is_there, key_of, plant, plant_foreign, scan, stored, unknown_key};
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

async fn an_orphan_goes_after_the_grace_and_never_before(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    uploads(&server, 5).await;
    plant(&env, &unknown_key(1), DAY_MS - 60_000);
    let none = scan(&server).await;
    assert_eq!((none.total, none.deleted, none.errors, none.listed), (0, 0, 0, 6));
    assert!(is_there(&env, &unknown_key(1)), "it may be somebody's");

    plant(&env, &unknown_key(1), DAY_MS + 1_000);
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.errors), (1, 1, 0));
    oracle::all_is_healed(&env, &server).await;
    let again = scan(&server).await;
    assert_eq!(
        (again.total, again.deleted, again.errors, again.listed),
        (0, 0, 0, 5),
        "nothing is left to do"
    );
}

async fn what_came_after_the_end_of_its_file_needs_no_grace(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    uploads(&server, 3).await;
    let file = server.me().upload("cargo", b"bytes").await;
    server.me().delete(&format!("/api/v2/files/{file}")).await.expect(204);
    // Its order is not carried out yet: nobody has lost it.
    assert_eq!(scan(&server).await.total, 0);
    assert!(is_there(&env, &key_of(&file)));
    server.settle().await;
    assert!(!is_there(&env, &key_of(&file)));
    assert_eq!(scan(&server).await.total, 0);

    plant(&env, &key_of(&file), 0);
    let late = scan(&server).await;
    assert_eq!((late.total, late.deleted), (1, 1));
    oracle::all_is_healed(&env, &server).await;
}

async fn unconfirmed_uploads_are_nobodys_orphans(database: Database) {
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

/// What this program did not name, or what was there before it, stays, and is counted.
async fn objects_of_others_stay(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    uploads(&server, 3).await;
    let strays = [
        "uploads/stray.bin",
        "uploads/a/b/c/d",
        "uploads/a b/it's ü %41.txt",
        "uploads/t/u/no-id",
        "uploads/t/u2",
        "uploads/x..y/z",
        "derived/t/u/x",
        "derived/~",
    ];
    // Hidden names are the file system's own.
    let neighbours =
        ["uploads2/x", "upload/x", "uploads.bak", "derived2/x", "RAW/2026/x", "other", "uploads/t/.nfs01"];
    for key in strays.iter().chain(&neighbours) {
        plant(&env, key, 2 * DAY_MS);
    }
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.errors, found.foreign), (0, 0, 0, 8));
    assert_eq!(found.listed, 11, "neighbours are not even looked at");
    for key in strays.iter().chain(&neighbours) {
        assert!(is_there(&env, key), "{key}");
    }
}

/// A key of our form that was in the store before we were: another installation's, perhaps.
async fn what_is_older_than_the_mark_stays(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    uploads(&server, 3).await;
    plant_foreign(&env, &unknown_key(1), 2 * DAY_MS);
    let found = scan(&server).await;
    assert_eq!((found.total, found.deleted, found.foreign), (0, 0, 1));
    assert!(is_there(&env, &unknown_key(1)));
    let dry = run(&server.app.core, &SweepLease::dry_run(&server.app.core)).await.expect("a dry run");
    assert_eq!((dry.total, dry.foreign, dry.samples.len()), (0, 1, 0));

    // Since the mark is older than it, it is our own.
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    assert_eq!(scan(&server).await.deleted, 1);
}

/// Every object that went has a line that says why, and only those.
async fn what_was_deleted_is_on_record(database: Database) {
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
    assert_eq!(env.scalar(lines).await, 1, "its bytes are still there");
    env.advance(HOUR_MS);
    server.settle().await;
    assert_eq!(env.scalar(lines).await, 3, "one for the file, one for all that was made of it");
    let original = format!("{lines} WHERE key = '{}' AND file_id = '{file}' AND size = 22", key_of(&file));
    assert_eq!(env.scalar(&original).await, 1);
    let derived = format!("{lines} WHERE key = 'derived/t/u/{file}/' AND file_id = '{file}' AND objects = 1");
    assert_eq!(env.scalar(&derived).await, 1);

    env.advance(3 * 24 * HOUR_MS);
    server.settle().await;
    upload_window::run(&server.app.uploads, &SweepLease::unleased(&server.app.core)).await.expect("a sweep");
    assert_eq!(env.scalar(lines).await, 0, "the record has its time too");
}

/// They keep nothing else from going.
async fn names_that_no_store_can_delete_are_those_of_others(database: Database) {
    let env = TestEnv::with(database, &[("ORPHAN_DELETE_LIMIT_PERCENT", "20")]);
    let server = env.start().await;
    uploads(&server, 3).await;
    let unspeakable = ["uploads/a\\b", "uploads/t/line\nbreak", "derived/\u{1}"];
    for key in unspeakable {
        plant(&env, key, 2 * DAY_MS);
    }
    plant(&env, &unknown_key(1), 2 * DAY_MS);
    let found = scan(&server).await;
    assert_eq!(
        (found.total, found.deleted, found.errors, found.foreign, found.stopped),
        (1, 1, 0, 3, None),
        "one in seven is to go"
    );
    let again = scan(&server).await;
    assert_eq!((again.total, again.deleted, again.errors, again.foreign), (0, 0, 0, 3));
    assert!(unspeakable.iter().all(|key| is_there(&env, key)));
}

/// Names that sort differently by bytes than by any language's rules, in folders that are each other's beginnings.
async fn the_order_of_names_is_that_of_their_bytes(database: Database) {
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
    assert_eq!(found.foreign, 1, "we would not encode a dash");
    std::fs::remove_dir_all(env.blob_dir().join("uploads/images/u%2Dx")).expect("the foreign one");
    assert_eq!(stored(&env), before);
    let all_at_once =
        orphan_blobs::run(&server.app.core, &SweepLease::unleased(&server.app.core)).await.expect("a scan");
    assert_eq!((all_at_once.total, all_at_once.missing, all_at_once.listed), (0, 0, 60));
}

async fn what_is_missing_is_reported_until_it_is_back(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    let ids = uploads(&server, 3).await;
    let path = env.blob_dir().join(key_of(&ids[1]));
    let away = env.folder().join("away");
    let missing = async || {
        let seen = me.get("/api/v2/uploads/orphans").await.expect(200);
        let samples = seen["missingBlobs"]["samples"].as_array().expect("a list").clone();
        assert_eq!(seen["missingBlobs"]["count"], samples.len());
        samples
            .into_iter()
            .map(|sample| sample["fileId"].as_str().expect("an id").to_owned())
            .collect::<Vec<_>>()
    };
    std::fs::rename(&path, &away).expect("somebody takes it away");
    for _ in 0..2 {
        let seen = scan(&server).await;
        assert_eq!((seen.total, seen.missing, seen.deleted), (0, 1, 0));
        assert_eq!(missing().await, [ids[1].clone()]);
    }
    assert_eq!(me.file(&ids[1]).await["status"], "ready", "nothing is deleted for it");

    std::fs::rename(&away, &path).expect("it is brought back");
    assert_eq!(scan(&server).await.missing, 0);
    assert_eq!(missing().await, Vec::<String>::new());
    assert_eq!(env.scalar("SELECT COUNT(*) FROM missing_blobs").await, 0);

    std::fs::remove_file(&path).expect("and taken for good");
    scan(&server).await;
    assert_eq!(missing().await.len(), 1);
    me.delete(&format!("/api/v2/files/{}", ids[1])).await.expect(204);
    assert_eq!(missing().await.len(), 0, "of a file that is deleted nothing is missed");
    server.settle().await;
    oracle::all_is_healed(&env, &server).await;
}

/// What stages have made counts too; what an attempt that did not end well has made does not have to be there.
async fn what_stages_made_is_compared_as_well(database: Database) {
    let settings = [UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")];
    let env = TestEnv::with_stages(database, "extract,chunk", &settings);
    let server = env.start().await;
    server.me().enqueue("letter.txt", b"a letter of some words").await;
    server.settle().await;
    let derived: Vec<String> = stored(&env).into_iter().filter(|key| key.starts_with("derived/")).collect();
    assert_eq!(derived.len(), 1);
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.missing, seen.listed), (0, 0, 2));

    std::fs::remove_file(env.blob_dir().join(&derived[0])).expect("taken away");
    assert_eq!(scan(&server).await.missing, 1);
    env.execute("DELETE FROM text_parts").await;
    assert_eq!(scan(&server).await.missing, 0, "nobody relies on it");
    assert_eq!(env.scalar("SELECT COUNT(*) FROM missing_blobs").await, 0);
}

async fn a_dry_run_changes_nothing(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED]);
    let server = env.start().await;
    let ids = uploads(&server, 3).await;
    std::fs::remove_file(env.blob_dir().join(key_of(&ids[0]))).expect("taken away");
    for n in 0..30 {
        plant(&env, &unknown_key(n), 2 * DAY_MS);
    }
    let before = stored(&env);
    let dry = run(&server.app.core, &SweepLease::dry_run(&server.app.core)).await.expect("a dry run");
    assert_eq!((dry.total, dry.deleted, dry.errors, dry.missing, dry.listed), (30, 0, 0, 1, 32));
    assert_eq!((dry.samples.len(), dry.samples[0].clone()), (20, unknown_key(0)));
    assert_eq!(stored(&env), before);
    let written = "SELECT (SELECT COUNT(*) FROM orphan_blobs) + (SELECT COUNT(*) FROM orphan_scans) \
        + (SELECT COUNT(*) FROM orphan_scan_ranges) + (SELECT COUNT(*) FROM missing_blobs) \
        + (SELECT COUNT(*) FROM pending_cleanups)";
    assert_eq!(env.scalar(written).await, 0);
    let shown = serde_json::to_value(&dry).expect("JSON");
    assert_eq!((&shown["total"], &shown["deleted"], &shown["errors"]), (&30.into(), &0.into(), &0.into()));
    assert_eq!(scan(&server).await.deleted, 30);
}

/// Tombstones outnumber what is in the store, and are passed by.
async fn a_long_row_of_tombstones_is_passed_by(database: Database) {
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
        assert!(is_there(&env, &key_of(id)));
    }
}

/// A tenant's folder that lies on another disk, and a link that leads nowhere: neither is an object.
async fn links_to_folders_are_left_alone(database: Database) {
    let env = TestEnv::with(database, &[UNLIMITED, ("ORPHAN_BLOB_GRACE_MS", "0")]);
    let server = env.start().await;
    let id = uploads(&server, 1).await.remove(0);
    let (here, there) = (env.blob_dir().join("uploads/t"), env.folder().join("another disk"));
    std::fs::rename(&here, &there).expect("moved");
    std::os::unix::fs::symlink(&there, &here).expect("linked");
    std::os::unix::fs::symlink("nowhere", env.blob_dir().join("uploads/dangling")).expect("linked");
    let seen = scan(&server).await;
    assert_eq!((seen.total, seen.deleted, seen.missing), (0, 0, 0), "{seen:?}");
    assert!(here.is_symlink() && is_there(&env, &key_of(&id)));
    server.me().get(&format!("/api/v2/files/{id}/download")).await.expect(302);
}

on_each_database!(
    links_to_folders_are_left_alone,
    an_orphan_goes_after_the_grace_and_never_before,
    what_came_after_the_end_of_its_file_needs_no_grace,
    unconfirmed_uploads_are_nobodys_orphans,
    objects_of_others_stay,
    what_is_older_than_the_mark_stays,
    what_was_deleted_is_on_record,
    names_that_no_store_can_delete_are_those_of_others,
    the_order_of_names_is_that_of_their_bytes,
    what_is_missing_is_reported_until_it_is_back,
    what_stages_made_is_compared_as_well,
    a_dry_run_changes_nothing,
    a_long_row_of_tombstones_is_passed_by,
);
