//! Finding files by id, by owner and by due check; counting them; sorting names by their bytes.

use wharfinger_catalog::{Catalog, Scope, fresh_id};
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::file::File;
use wharfinger_lifecycle::id::FileId;
use wharfinger_lifecycle::state::Status;

use super::sample::{
    LIMIT, NOW, POLICY, REFUSING, SECOND, URL_DEAD_AT, committed, confirm, confirmed, deleted, quarantined,
    registered, registered_at, tenant, user,
};
use super::test_db::TestDb;

const ADA: (&str, &str) = ("harbour", "ada");
const BEN: (&str, &str) = ("harbour", "ben");
const EVE: (&str, &str) = ("elsewhere", "ada");

fn ids(files: &[File]) -> Vec<FileId> {
    files.iter().map(|file| file.id).collect()
}

pub(super) async fn unknown_files_are_not_found(db: &TestDb) {
    let unknown = FileId(fresh_id(NOW));
    assert_eq!(db.catalog.file(unknown).await.expect("read"), None);
    assert_eq!(db.catalog.history(unknown).await.expect("read"), []);
    assert_eq!(db.catalog.files(&Scope::All, None, 10).await.expect("read"), []);
    assert_eq!(db.catalog.files_to_check(Status::Registered, i64::MAX, None, 10).await.expect("read"), []);
    assert_eq!(db.catalog.status_counts(&Scope::All).await.expect("read").by_status, []);
}

/// I11: a scope lists only its own files, and no deleted ones.
pub(super) async fn files_are_listed_by_owner_newest_first(db: &TestDb) {
    let mut all = Vec::new();
    for (n, owner) in [ADA, BEN, EVE, ADA, ADA, BEN].into_iter().enumerate() {
        all.push(registered_at(&db.catalog, owner, 10, NOW + n as i64).await);
    }
    deleted(&db.catalog, ADA, 10, &REFUSING).await;
    let listed = async |scope: Scope| ids(&db.catalog.files(&scope, None, 100).await.expect("read"));
    let owned = |n: &[usize]| n.iter().map(|n| all[*n].id).collect::<Vec<_>>();

    assert_eq!(listed(Scope::User(tenant("harbour"), user("ada"))).await, owned(&[4, 3, 0]));
    assert_eq!(listed(Scope::User(tenant("harbour"), user("ben"))).await, owned(&[5, 1]));
    assert_eq!(listed(Scope::User(tenant("elsewhere"), user("ada"))).await, owned(&[2]));
    assert_eq!(listed(Scope::User(tenant("Harbour"), user("ada"))).await, owned(&[]));
    assert_eq!(listed(Scope::Tenant(tenant("harbour"))).await, owned(&[5, 4, 3, 1, 0]));
    assert_eq!(listed(Scope::Tenant(tenant("elsewhere"))).await, owned(&[2]));
    assert_eq!(listed(Scope::All).await, owned(&[5, 4, 3, 2, 1, 0]));
    for (file, owner) in all.iter().zip([ADA, BEN, EVE, ADA, ADA, BEN]) {
        for other in [ADA, BEN, EVE] {
            let scope = Scope::User(tenant(other.0), user(other.1));
            assert_eq!(scope.covers(&file.tenant, &file.user), other == owner);
        }
    }
}

pub(super) async fn pages_of_files_have_no_gaps(db: &TestDb) {
    let mut all = Vec::new();
    for n in 0..7 {
        all.push(registered_at(&db.catalog, ADA, 10, NOW + n).await.id);
        registered_at(&db.catalog, BEN, 10, NOW + n).await;
    }
    all.reverse();
    for scope in [Scope::User(tenant("harbour"), user("ada")), Scope::Tenant(tenant("harbour")), Scope::All] {
        let whole = ids(&db.catalog.files(&scope, None, 100).await.expect("read"));
        let mut pages = Vec::new();
        let mut before = None;
        loop {
            let page = ids(&db.catalog.files(&scope, before, 3).await.expect("read"));
            assert!(page.len() <= 3);
            let Some(last) = page.last() else { break };
            before = Some(*last);
            pages.extend(page);
        }
        assert_eq!(pages, whole);
        let own: Vec<FileId> = pages.into_iter().filter(|id| all.contains(id)).collect();
        assert_eq!(own, all);
    }
}

async fn due(catalog: &Catalog, now: UnixMs, after: Option<(UnixMs, FileId)>, limit: usize) -> Vec<File> {
    let mut files = Vec::new();
    for (at, id) in catalog.files_to_check(Status::Registered, now, after, limit).await.expect("read") {
        let file = catalog.file(id).await.expect("read").expect("it is there");
        assert_eq!(file.next_check_at, Some(at));
        files.push(file);
    }
    files
}

pub(super) async fn due_files_are_checked_oldest_first(db: &TestDb) {
    let late = registered_at(&db.catalog, ADA, 10, NOW + 2).await;
    let mut same: Vec<File> = Vec::new();
    for _ in 0..4 {
        same.push(registered_at(&db.catalog, BEN, 10, NOW + 1).await);
    }
    same.sort_by_key(|file| file.id.to_string());
    let early = registered_at(&db.catalog, EVE, 10, NOW).await;
    let tombstone = deleted(&db.catalog, ADA, 10, &POLICY).await;
    confirmed(&db.catalog, ADA, 10).await;
    assert_eq!(tombstone.next_check_at, Some(URL_DEAD_AT));

    assert_eq!(due(&db.catalog, URL_DEAD_AT - 1, None, 10).await, []);
    assert_eq!(due(&db.catalog, URL_DEAD_AT, None, 10).await, vec![early.clone()]);
    let deleted = db.catalog.files_to_check(Status::Deleted, URL_DEAD_AT, None, 10).await.expect("read");
    assert_eq!(deleted, [(URL_DEAD_AT, tombstone.id)], "each status has its own list");

    let mut all = vec![early];
    all.extend(same);
    all.push(late);
    assert_eq!(due(&db.catalog, URL_DEAD_AT + 2, None, 10).await, all, "ready files are not checked");
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = due(&db.catalog, URL_DEAD_AT + 2, after, 2).await;
        let Some(last) = page.last() else { break };
        after = Some((last.next_check_at.expect("it was due"), last.id));
        pages.extend(page);
    }
    assert_eq!(pages, all, "pages have no gaps where times are equal");
}

pub(super) async fn files_are_counted_by_status(db: &TestDb) {
    registered(&db.catalog, ADA, 1).await;
    registered(&db.catalog, EVE, 2).await;
    confirmed(&db.catalog, ADA, 4).await;
    let file = confirmed(&db.catalog, BEN, 8).await;
    committed(&db.catalog, quarantined(&file, "changed", NOW + SECOND)).await;
    deleted(&db.catalog, BEN, 16, &POLICY).await;
    let mut counts = db.catalog.status_counts(&Scope::All).await.expect("read").by_status;
    counts.retain(|(_, files)| *files > 0);
    counts.sort();
    assert_eq!(counts, [(Status::Registered, 2), (Status::Ready, 1), (Status::Quarantined, 1)]);
}

/// Stores list keys in byte order. The default collation of the test database is another one.
pub(super) async fn names_are_sorted_by_their_bytes(db: &TestDb) {
    if db.is_postgres() {
        let order = "SELECT CASE WHEN 'a' < 'B' THEN 'language' ELSE 'bytes' END";
        assert_eq!(db.texts(order).await, ["language"], "the default collation must differ from byte order");
    }
    let mut names = ["b", "B", "a", "Z", "z", "ä", "Ä", "é", "a-b", "a_b", "a b", "ab", "~", "ﬀ", "😀"];
    for name in names {
        let file = registered(&db.catalog, (name, "ada"), 1).await;
        committed(&db.catalog, confirm(&file)).await;
    }
    names.sort_unstable();
    let tenants = async |after: &str, limit| {
        let tenants = db.catalog.tenants(after, limit).await.expect("read");
        tenants.iter().map(|tenant| tenant.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(tenants("", 100).await, names);
    for (n, name) in names.iter().enumerate() {
        let next: Vec<&str> = names[n + 1..].iter().copied().take(2).collect();
        assert_eq!(tenants(name, 2).await, next, "after {name}");
    }
    let keys = db.texts("SELECT key FROM objects ORDER BY key").await;
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(keys, sorted);
    assert_eq!(keys.len(), names.len());
    assert_eq!(db.catalog.quota(&tenant("ä"), LIMIT).await.expect("read").used_bytes, 1);
}
