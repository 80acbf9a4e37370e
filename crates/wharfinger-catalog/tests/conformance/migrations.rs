//! Migrations in a database with tables of other applications, and while other processes run.

use wharfinger_calls::faults::Faults;
use wharfinger_catalog::{CatalogError, CatalogUrl, SCHEMA_VERSION};

use super::sample::{NOW, registered};
use super::test_db::{TestDb, open, sql_at, texts_at};

/// The error of a migration and of `schema_step` in a database that is not ours.
async fn refusal(url: &CatalogUrl) -> String {
    let catalog = open(url, Faults::none()).await;
    let error = catalog.migrate(NOW).await.expect_err("a database that is not ours");
    let step = catalog.schema_step().await.expect_err("doctor gets the same answer");
    assert_eq!(step.to_string(), error.to_string());
    catalog.close().await;
    match error {
        CatalogError::Unusable(why) => why,
        other => panic!("{other}"),
    }
}

/// Another application has a table `files` in the same database.
pub(super) async fn tables_of_another_application_stay_unchanged(db: &TestDb) {
    let url = db.empty_database();
    for statement in ["CREATE TABLE files (name TEXT)", "INSERT INTO files (name) VALUES ('theirs')"] {
        sql_at(&url, statement).await;
    }
    let theirs = match db.is_postgres() {
        true => "SELECT name FROM public.files",
        false => "SELECT name FROM files",
    };
    if db.is_postgres() {
        let catalog = open(&url, Faults::none()).await;
        catalog.migrate(NOW).await.expect("migrated");
        registered(&catalog, ("harbour", "ada"), 10).await;
        let foreign = catalog.foreign_tables().await.expect("read");
        assert_eq!(foreign.as_deref(), Some("public.files"));
        assert_eq!(texts_at(&url, "SELECT file_name FROM wharfinger.files").await.len(), 1);
        catalog.close().await;
    } else {
        let why = refusal(&url).await;
        assert!(why.contains("another application (files)") && why.contains("DATABASE_URL"), "{why}");
        assert_eq!(texts_at(&url, "SELECT name FROM sqlite_master").await, ["files"]);
    }
    assert_eq!(texts_at(&url, theirs).await, ["theirs"]);
}

pub(super) async fn a_schema_of_another_application_is_refused(db: &TestDb) {
    if !db.is_postgres() {
        return;
    }
    let url = db.empty_database();
    sql_at(&url, "CREATE SCHEMA wharfinger").await;
    sql_at(&url, "CREATE TABLE wharfinger.crates (name TEXT)").await;
    let why = refusal(&url).await;
    assert!(why.contains("`wharfinger`") && why.contains("(crates)"), "{why}");
    assert!(why.contains("WHARFINGER_DATABASE_SCHEMA"), "{why}");
    // An empty schema that an administrator has created is used.
    sql_at(&url, "DROP TABLE wharfinger.crates").await;
    let catalog = open(&url, Faults::none()).await;
    catalog.migrate(NOW).await.expect("migrated");
    catalog.close().await;
}

pub(super) async fn a_catalog_from_before_the_first_release_is_refused(db: &TestDb) {
    let url = db.empty_database();
    for table in ["schema_steps", "pending_cleanups", "files"] {
        sql_at(&url, &format!("CREATE TABLE {table} (step BIGINT)")).await;
    }
    let why = refusal(&url).await;
    assert!(why.contains("before the first release") && why.contains("empty database"), "{why}");

    db.sql("UPDATE schema_migrations SET fingerprint = 'of an earlier text'").await;
    let before = db.dump().await;
    assert_eq!(refusal(&db.url).await, why);
    assert_eq!(db.dump().await, before);
}

/// A missing or invalid index is built while other processes write.
pub(super) async fn missing_indexes_are_built_during_writes(db: &TestDb) {
    db.sql("DROP INDEX files_by_tenant").await;
    let mut missing = vec!["files_by_tenant"];
    if db.is_postgres() {
        let invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'files_charged'::regclass";
        db.sql(invalid).await;
        missing.push("files_charged");
    }
    assert_eq!(db.catalog.missing_indexes().await.expect("read"), missing);
    let migrating = db.another_handle().await;
    let migration = tokio::spawn(async move {
        migrating.migrate(NOW).await.expect("migrated");
        migrating.close().await;
    });
    let mut written = 0;
    while !migration.is_finished() || written < 20 {
        registered(&db.catalog, ("harbour", "ada"), 1).await;
        written += 1;
    }
    migration.await.expect("no panic");
    assert_eq!(db.catalog.missing_indexes().await.expect("read"), Vec::<String>::new());
    assert_eq!(db.catalog.audit().await.expect("audited"), Vec::<String>::new());
}

/// An index of a large table takes longer than the statement timeout. An event trigger refuses each index that is built
/// under a timeout.
pub(super) async fn indexes_are_built_without_a_time_limit(db: &TestDb) {
    if !db.is_postgres() {
        return;
    }
    db.sql("DROP INDEX jobs_dead").await;
    for statement in [
        "CREATE FUNCTION public.refuse_limits() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF current_setting('statement_timeout') <> '0' THEN \
         RAISE EXCEPTION 'a limit of %', current_setting('statement_timeout'); END IF; END $$",
        "CREATE EVENT TRIGGER refuse_limits ON ddl_command_start WHEN TAG IN ('CREATE INDEX') \
         EXECUTE FUNCTION public.refuse_limits()",
    ] {
        db.sql(statement).await;
    }
    let migrating = db.another_handle().await;
    migrating.migrate(NOW).await.expect("migrated");
    migrating.close().await;
    assert_eq!(db.catalog.missing_indexes().await.expect("read"), Vec::<String>::new());
    db.sql("DROP EVENT TRIGGER refuse_limits").await;
}

/// All other statements would queue behind a migration that waits for a lock, so it waits only briefly and retries.
pub(super) async fn a_migration_waits_for_a_locked_table(db: &TestDb) {
    if !db.is_postgres() {
        return;
    }
    db.sql("DROP INDEX jobs_dead").await;
    let CatalogUrl::Postgres(url) = &db.url else { panic!("PostgreSQL") };
    let mut holder = <sqlx::PgConnection as sqlx::Connection>::connect(url).await.expect("a connection");
    sqlx::query("BEGIN").execute(&mut holder).await.expect("started");
    sqlx::query("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE").execute(&mut holder).await.expect("locked");
    let migrating = db.another_handle().await;
    let migration = tokio::spawn(async move { migrating.migrate(NOW).await });
    // The lock is held until the migration has stopped waiting once.
    let waiting = "SELECT COUNT(*)::text FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted";
    for was_waiting in [true, false] {
        while (db.texts(waiting).await != ["0"]) != was_waiting {
            assert!(!migration.is_finished(), "it ended while the table was locked");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    sqlx::query("COMMIT").execute(&mut holder).await.expect("committed");
    migration.await.expect("no panic").expect("migrated");
    assert_eq!(db.catalog.missing_indexes().await.expect("read"), Vec::<String>::new());
}

/// A step as a later release may add it: a table, a column and values for existing rows.
const NEXT_STEP: &str = "-- A step of a later release.\n\
    CREATE TABLE berths (id TEXT PRIMARY KEY {bytes}, file_id TEXT NOT NULL REFERENCES files (id));\n\
    ALTER TABLE files ADD COLUMN berth TEXT;\n\
    UPDATE files SET berth = 'quay ' || file_name WHERE pipeline_status = 'registered';\n";

pub(super) async fn a_later_step_is_applied_once_to_a_filled_catalog(db: &TestDb) {
    let url = db.empty_database();
    let old = open(&url, Faults::none()).await;
    old.migrate(NOW).await.expect("migrated");
    let before = registered(&old, ("harbour", "ada"), 10).await;

    let next = || async { open(&url, Faults::none()).await.with_step(NEXT_STEP) };
    // A failure before the commit leaves the schema unchanged.
    let failing =
        open(&url, Faults::none()).await.with_step("ALTER TABLE files ADD COLUMN berth TEXT;\nNO SQL;\n");
    failing.migrate(NOW).await.expect_err("the second statement is wrong");
    assert_eq!(old.schema_step().await.expect("read"), SCHEMA_VERSION);
    failing.close().await;

    // Two processes of the new version start together while one of the old version runs.
    let (one, other) = (next().await, next().await);
    let (first, second) = futures::join!(one.migrate(NOW), other.migrate(NOW));
    let mut applied = [first.expect("migrated"), second.expect("migrated")].concat();
    applied.sort();
    assert_eq!(applied, [SCHEMA_VERSION + 1]);
    assert_eq!(one.migrate(NOW).await.expect("nothing left"), [0; 0]);
    let after = registered(&old, ("harbour", "ada"), 10).await;
    assert_eq!(one.file(before.id).await.expect("read"), Some(before.clone()));
    assert_eq!(one.file(after.id).await.expect("read"), Some(after));
    let schema = if db.is_postgres() { "wharfinger." } else { "" };
    let berths = format!("SELECT berth FROM {schema}files WHERE berth IS NOT NULL");
    assert_eq!(texts_at(&url, &berths).await, [format!("quay {}", before.name)]);
    assert_eq!(one.missing_indexes().await.expect("read"), Vec::<String>::new());

    // A program that does not know the step refuses the catalog.
    let error = old.migrate(NOW).await.expect_err("the schema is newer");
    assert!(
        matches!(&error, CatalogError::Unusable(why) if why.contains("use a newer wharfinger")),
        "{error}"
    );
    for catalog in [old, one, other] {
        catalog.close().await;
    }
}
