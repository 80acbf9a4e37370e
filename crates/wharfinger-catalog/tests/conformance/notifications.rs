//! The notices of owners.

use uuid::Uuid;
use wharfinger_catalog::Notification;
use wharfinger_lifecycle::file;
use wharfinger_lifecycle::id::FileId;

use super::sample::{
    HOUR, NOW, POLICY, URL_DEAD_AT, committed, confirmed, quarantined, registered, tenant, user,
};
use super::test_db::TestDb;

async fn notices_of(
    db: &TestDb,
    owner: (&str, &str),
    before: Option<Uuid>,
    limit: usize,
) -> Vec<Notification> {
    let (tenant, user) = (tenant(owner.0), user(owner.1));
    db.catalog.notifications(&tenant, &user, before, limit).await.expect("read")
}

/// Reclaims a file of `owner`, `later` milliseconds after its URL has expired.
async fn reclaimed(db: &TestDb, owner: (&str, &str), later: i64) -> FileId {
    let file = registered(&db.catalog, owner, 10).await;
    let change = file::reclaim(&file, "late", &POLICY, URL_DEAD_AT + later).expect("reclaimable");
    committed(&db.catalog, change).await.id
}

pub(super) async fn a_notice_has_all_its_fields(db: &TestDb) {
    let file = confirmed(&db.catalog, ("harbour", "ada"), 10).await;
    committed(&db.catalog, quarantined(&file, "infected", NOW + HOUR)).await;
    let notices = notices_of(db, ("harbour", "ada"), None, 10).await;
    assert_eq!((notices.len(), notices[1].kind.as_str()), (2, "file-ready"));
    let expected = Notification {
        id: notices[0].id,
        tenant: "harbour".into(),
        user: "ada".into(),
        kind: "file-quarantined".into(),
        file_id: Some(file.id.to_string()),
        file_name: Some("report.pdf".into()),
        batch_id: None,
        message: "report.pdf has been quarantined: infected.".into(),
        data: r#"{"reason":"infected"}"#.into(),
        created_at: NOW + HOUR,
    };
    assert_eq!(notices[0], expected);
}

pub(super) async fn users_see_only_their_own_notices_newest_first(db: &TestDb) {
    let mut files = Vec::new();
    for later in 0..5 {
        files.push(reclaimed(db, ("harbour", "ada"), later).await.to_string());
    }
    let other = reclaimed(db, ("harbour", "ben"), 9).await.to_string();
    let namesake = reclaimed(db, ("wharf", "ada"), 9).await.to_string();
    files.reverse();

    let ids = |notices: &[Notification]| {
        notices.iter().map(|notice| notice.file_id.clone().expect("a notice of a file")).collect::<Vec<_>>()
    };
    assert_eq!(ids(&notices_of(db, ("harbour", "ada"), None, 10).await), files);
    assert_eq!(ids(&notices_of(db, ("harbour", "ben"), None, 10).await), [other]);
    assert_eq!(ids(&notices_of(db, ("wharf", "ada"), None, 10).await), [namesake]);
    assert_eq!(notices_of(db, ("wharf", "ben"), None, 10).await, []);

    let first = notices_of(db, ("harbour", "ada"), None, 2).await;
    let second = notices_of(db, ("harbour", "ada"), Some(first[1].id), 2).await;
    let third = notices_of(db, ("harbour", "ada"), Some(second[1].id), 2).await;
    assert_eq!((first.len(), second.len(), third.len()), (2, 2, 1));
    assert_eq!([ids(&first), ids(&second), ids(&third)].concat(), files);
}

pub(super) async fn old_notices_are_purged_in_bounded_batches(db: &TestDb) {
    const ADA: (&str, &str) = ("harbour", "ada");
    for later in 0..5 {
        reclaimed(db, ADA, later * HOUR).await;
    }
    let kept = notices_of(db, ADA, None, 10).await[..2].to_vec();
    let before = URL_DEAD_AT + 3 * HOUR;
    assert_eq!(db.catalog.purge_notifications(before, 2).await.expect("purged"), 2);
    assert_eq!(db.catalog.purge_notifications(before, 2).await.expect("purged"), 1);
    assert_eq!(db.catalog.purge_notifications(before, 2).await.expect("purged"), 0);
    assert_eq!(notices_of(db, ADA, None, 10).await, kept, "newer notices are kept");
    let ids: Vec<Uuid> = kept.iter().map(|notice| notice.id).chain([Uuid::new_v4()]).collect();
    let mut found = db.catalog.notifications_by_id(&ids).await.expect("read");
    found.sort_by_key(|notice| std::cmp::Reverse(notice.id));
    assert_eq!(found, kept, "an unknown id returns nothing");
    assert_eq!(db.catalog.notifications_by_id(&[]).await.expect("read"), []);
}
