//! Lists of files: newest first, in pages, each file exactly once.

use serde_json::Value;

use crate::oracle;
use crate::test_app::{Client, Database, TestEnv, on_each_database, patiently};

fn names(page: &Value) -> Vec<String> {
    let files = page["files"].as_array().expect("a list");
    files.iter().map(|file| file["fileName"].as_str().expect("a name").to_owned()).collect()
}

/// All pages, up to the one without a cursor.
async fn pages(me: &Client<'_>, limit: usize) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = me.get(&format!("/api/v2/files?limit={limit}{cursor}")).await.expect(200);
        pages.push(names(&page));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return pages,
        }
    }
}

async fn files_are_listed_newest_first_in_pages(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    for n in 0..7 {
        me.init(&format!("f{n}"), n).await.expect(201);
        env.advance(1);
    }
    assert_eq!(pages(&me, 1000).await, [["f6", "f5", "f4", "f3", "f2", "f1", "f0"]]);
    assert_eq!(pages(&me, 3).await, [vec!["f6", "f5", "f4"], vec!["f3", "f2", "f1"], vec!["f0"]]);
    assert_eq!(pages(&me, 7).await.len(), 1, "a full last page has no cursor");
    assert_eq!(pages(&me, 1).await.concat().len(), 7);
    oracle::catalog_is_sound(&server).await;
}

async fn changes_between_two_pages_do_not_shift_the_list(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    for n in 0..6 {
        me.init(&format!("f{n}"), n).await.expect(201);
        env.advance(1);
    }
    let first = me.get("/api/v2/files?limit=3").await.expect(200);
    assert_eq!(names(&first), ["f5", "f4", "f3"]);
    // The file of the cursor is deleted, and a newer one is added.
    let last = first["files"][2]["fileId"].as_str().expect("an id");
    me.delete(&format!("/api/v2/files/{last}")).await.expect(204);
    me.init("f6", 6).await.expect(201);
    let cursor = first["nextCursor"].as_str().expect("a cursor");
    let second = me.get(&format!("/api/v2/files?limit=3&cursor={cursor}")).await.expect(200);
    assert_eq!(names(&second), ["f2", "f1", "f0"]);
    assert!(second["nextCursor"].is_null());
    oracle::catalog_is_sound(&server).await;
}

async fn the_default_page_has_fifty_files(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let me = server.me();
    futures::future::join_all((0..51).map(|n| {
        let me = &me;
        async move {
            let name = format!("f{n}");
            patiently(|| me.init(&name, 1)).await.expect(201)
        }
    }))
    .await;
    let page = me.get("/api/v2/files").await.expect(200);
    assert_eq!(names(&page).len(), 50);
    assert!(page["nextCursor"].is_string());
    assert_eq!(pages(&me, 50).await.concat().len(), 51);
    oracle::catalog_is_sound(&server).await;
}

#[tokio::test]
async fn invalid_limits_and_cursors_are_refused() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let admin = server.as_user("t", "a", wharfinger::core::Role::Admin);
    for list in ["/api/v2/files", "/api/v2/notifications", "/api/v1/maintenance/cleanup/pending"] {
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=-1", "limit"),
            ("limit=ten", "limit"),
            ("limit=99999999999999999999", "limit"),
            ("cursor=x", "cursor"),
            ("cursor=", "cursor"),
            ("cursor=018f4e6e7f3a70008000000000000001%27--", "cursor"),
            ("page=2", "page"),
            ("limit=1&limit=2", "limit"),
        ] {
            let problem = admin.get(&format!("{list}?{query}")).await.expect_problem(400, "invalid_request");
            assert_eq!(problem["errors"][0]["field"], field, "{list}?{query}: {problem}");
        }
        admin.get(&format!("{list}?limit=1")).await.expect(200);
        admin.get(&format!("{list}?limit=1000")).await.expect(200);
    }
}

on_each_database!(
    files_are_listed_newest_first_in_pages,
    changes_between_two_pages_do_not_shift_the_list,
    the_default_page_has_fifty_files,
);
