//! S3 inventories: as the list of keys and instead of the listing, in CSV and in Parquet, from a file and from a
//! bucket. All kinds of lists give the same result.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use md5::{Digest as _, Md5};
use parquet::basic::Compression as ParquetCompression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};

use super::stores::Bucket;
use super::{StoreFixture, refused, report, samples};

/// A row of an inventory.
struct Row {
    key: String,
    size: u64,
    is_latest: bool,
    is_delete_marker: bool,
}

fn row(key: impl Into<String>) -> Row {
    let key: String = key.into();
    Row { size: key.len() as u64, key, is_latest: true, is_delete_marker: false }
}

const STORED_AT: &str = "2020-01-02T03:04:05.000Z";
const SCHEMA: &str = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate";

/// Encodes a key like a form, as CSV inventories do.
fn form_encoded(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.*/".contains(&byte);
    key.bytes()
        .map(|byte| match byte {
            b' ' => "+".to_owned(),
            byte if plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

fn csv(rows: &[Row]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    for row in rows {
        let Row { key, size, is_latest, is_delete_marker } = row;
        let key = form_encoded(key);
        writeln!(
            out,
            "\"source\",\"{key}\",\"v\",\"{is_latest}\",\"{is_delete_marker}\",\"{size}\",\"{STORED_AT}\""
        )
        .expect("memory");
    }
    out.finish().expect("memory")
}

fn parquet(rows: &[Row]) -> Vec<u8> {
    let schema = parse_message_type(
        "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); \
         optional boolean is_latest; optional boolean is_delete_marker; optional int64 size; \
         optional int64 last_modified_date (TIMESTAMP_MILLIS); }",
    );
    let properties = WriterProperties::builder().set_compression(ParquetCompression::SNAPPY).build();
    let mut file =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema.expect("a schema")), Arc::new(properties))
            .expect("a file");
    // More than one row group.
    for rows in rows.chunks(rows.len().div_ceil(2).max(1)) {
        let mut group = file.next_row_group().expect("a group");
        let present = vec![1i16; rows.len()];
        let mut column = 0;
        while let Some(mut writer) = group.next_column().expect("a column") {
            let texts = |text: &dyn Fn(&Row) -> Vec<u8>| -> Vec<ByteArray> {
                rows.iter().map(|row| ByteArray::from(text(row))).collect()
            };
            let written = match column {
                0 => writer.typed::<ByteArrayType>().write_batch(&texts(&|_| b"source".to_vec()), None, None),
                1 => writer.typed::<ByteArrayType>().write_batch(
                    &texts(&|row| row.key.clone().into_bytes()),
                    None,
                    None,
                ),
                2 | 3 => {
                    let flags: Vec<bool> = rows
                        .iter()
                        .map(|row| if column == 2 { row.is_latest } else { row.is_delete_marker })
                        .collect();
                    writer.typed::<BoolType>().write_batch(&flags, Some(&present), None)
                }
                _ => {
                    let numbers: Vec<i64> = rows
                        .iter()
                        .map(|row| if column == 4 { row.size as i64 } else { 1_577_934_245_000 })
                        .collect();
                    writer.typed::<Int64Type>().write_batch(&numbers, Some(&present), None)
                }
            };
            written.expect("written");
            writer.close().expect("closed");
            column += 1;
        }
        group.close().expect("closed");
    }
    file.into_inner().expect("a file")
}

/// A manifest of data files, given by key and content.
fn manifest(bucket: &str, format: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let files: Vec<Value> = files
        .iter()
        .map(|(key, bytes)| {
            let sum: String = Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "key": key, "size": bytes.len(), "MD5checksum": sum })
        })
        .collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_millis();
    let schema = if format == "CSV" { SCHEMA } else { "message s3.inventory { … }" };
    let manifest = json!({
        "sourceBucket": bucket, "destinationBucket": "arn:aws:s3:::inventories", "version": "2016-11-30",
        "creationTimestamp": now.to_string(), "fileFormat": format, "fileSchema": schema, "files": files,
    });
    serde_json::to_vec(&manifest).expect("JSON")
}

/// Writes an inventory as a folder that was copied from its bucket. Returns the path of the manifest.
fn write_inventory(folder: &Path, format: &str, bucket: &str, parts: &[&[Row]]) -> String {
    let extension = if format == "CSV" { "csv.gz" } else { "parquet" };
    let files: Vec<(String, Vec<u8>)> = parts
        .iter()
        .enumerate()
        .map(|(n, rows)| {
            let bytes = if format == "CSV" { csv(rows) } else { parquet(rows) };
            (format!("inventory/source/daily/data/{n}.{extension}"), bytes)
        })
        .collect();
    let dated = folder.join("inventory/source/daily/2026-01-01T00-00Z");
    std::fs::create_dir_all(&dated).expect("a folder");
    std::fs::create_dir_all(folder.join("inventory/source/daily/data")).expect("a folder");
    for (key, bytes) in &files {
        std::fs::write(folder.join(key), bytes).expect("a file");
    }
    let named: Vec<(&str, &[u8])> =
        files.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
    std::fs::write(dated.join("manifest.json"), manifest(bucket, format, &named)).expect("a manifest");
    dated.join("manifest.json").display().to_string()
}

const ODD_KEYS: [&str; 5] = ["a b+c", "x,\"y\"", "ünï/%41", "z\nz", "plain"];

#[test]
fn an_inventory_can_be_the_list_of_keys() {
    for format in ["CSV", "Parquet"] {
        let fixture = StoreFixture::with(&ODD_KEYS);
        fixture.put("deleted", 3);
        fixture.put("older", 3);
        let mut rows: Vec<Row> = ODD_KEYS.iter().map(|key| row(*key)).collect();
        rows.push(Row { is_delete_marker: true, ..row("deleted") });
        rows.push(Row { is_latest: false, ..row("older") });
        let inventories = fixture.place.path().join("inventories");
        let path = write_inventory(&inventories, format, "another-bucket", &[&rows[3..], &rows[..3]]);
        let found = report(&fixture.run(&["--inventory", &path, "--json"]).expect(0));
        assert_eq!(samples(&found["orphans"]), ["deleted", "older"], "{format}: {found}");
        let mut command = fixture.place.command(&[
            "reconcile",
            "--bucket",
            &fixture.url(),
            "--inventory",
            "manifest.json",
            "--json",
        ]);
        let manifest_folder = std::path::Path::new(&path).parent().expect("a folder");
        let ran = super::Ran::from(command.current_dir(manifest_folder).output().expect("the program runs"));
        assert_eq!(report(&ran.expect(0)), found, "{format}");
        assert_eq!((&found["keys"]["count"], &found["keys"]["skipped"]), (&5.into(), &2.into()), "{format}");
        assert_eq!(
            (&found["missing"]["keys"], &found["resized"]["objects"]),
            (&0.into(), &0.into()),
            "{format}"
        );

        let data = inventories.join("inventory/source/daily/data");
        let one = std::fs::read_dir(&data).expect("files").next().expect("a file").expect("a file").path();
        let complete = std::fs::read(&one).expect("a file");
        std::fs::write(&one, &complete[..complete.len() - 1]).expect("truncated");
        refused(fixture.run(&["--inventory", &path, "--delete", "--yes"]), &["but the manifest says"]);
        let mut damaged = complete.clone();
        damaged[complete.len() / 2] ^= 1;
        std::fs::write(&one, damaged).expect("damaged");
        refused(fixture.run(&["--inventory", &path]), &["MD5"]);
        std::fs::remove_file(&one).expect("removed");
        refused(fixture.run(&["--inventory", &path]), &["cannot find the data file"]);
    }
}

#[test]
fn other_formats_are_rejected() {
    let fixture = StoreFixture::with(&["a"]);
    let orc = fixture.place.write("manifest.json", manifest("b", "ORC", &[]));
    refused(fixture.run(&["--inventory", &orc.display().to_string()]), &["ORC", "Parquet"]);
    let none = fixture.place.write("none.json", "{}");
    refused(fixture.run(&["--inventory", &none.display().to_string()]), &["not a manifest"]);
    let empty = fixture.place.write("empty.json", manifest("b", "CSV", &[]));
    refused(fixture.run(&["--inventory", &empty.display().to_string()]), &["empty"]);
}

/// An object that was deleted after the inventory is found missing at its delete. An object that was stored later is
/// not missing. Only objects that are as in the inventory may be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_can_replace_the_listing() {
    let bucket = Bucket::s3().await;
    bucket.put(["kept", "changed", "orphan", "stored-later"]).await;
    bucket.age().await;
    let rows: Vec<Row> = ["orphan", "kept", "removed", "changed"].map(row).into_iter().collect();
    let folder = bucket.place.path().join("inventories");
    let path = write_inventory(&folder, "CSV", &bucket.name, &[&rows]);
    bucket.place.write("keys", "kept\nstored-later\n");
    let more = ["--keys", "keys", "--listing", &path, "--json"];
    let found = report(&bucket.run(&more).expect(0));
    assert_eq!(samples(&found["orphans"]), ["changed", "orphan", "removed"]);
    assert_eq!((&found["listed"]["objects"], &found["missing"]["keys"]), (&4.into(), &0.into()), "{found}");
    // No object has the time that the inventory says, so nothing may be deleted.
    let delete = ["--delete", "--yes", "--limit-percent", "90"];
    let found = report(&bucket.run(&[&more[..], &delete].concat()).expect(0));
    let deletion = &found["deletion"];
    assert_eq!(
        (&deletion["objects"], &deletion["alreadyDeleted"], &deletion["changed"]),
        (&0.into(), &1.into(), &2.into())
    );
    assert_eq!(bucket.keys().await, ["changed", "kept", "orphan", "stored-later"]);

    assert!(found["inventoryCreatedAt"].is_string(), "{found}");
    let manifest = std::fs::read_to_string(&path).expect("a manifest");
    std::fs::write(&path, manifest.replace("LastModifiedDate", "ETag")).expect("written");
    refused(bucket.run(&more), &["--listing needs an inventory with Size and LastModifiedDate"]);

    let other = write_inventory(&folder, "CSV", "another", &[&rows]);
    refused(
        bucket.run(&["--keys", "keys", "--listing", &other]),
        &["the inventory belongs to the bucket another"],
    );
}

/// A file, two databases, and both formats of inventories, from a file and from a bucket.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_list_gives_the_same_report() {
    let bucket = Bucket::s3().await;
    let keys: Vec<String> = (0..1_500).map(|n| format!("d{}/ü {n:04}", n % 3)).collect();
    bucket.put(keys.iter().filter(|key| !key.ends_with('9')).cloned()).await;
    bucket.age().await;
    // The list is not sorted. Keys that end in 5 are not on it; keys that end in 9 have no object.
    let listed: Vec<&String> = keys.iter().rev().filter(|key| !key.ends_with('5')).collect();
    let orphans = keys.iter().filter(|key| key.ends_with('5')).count();
    let missing = keys.iter().filter(|key| key.ends_with('9')).count();

    bucket.place.write("keys", listed.iter().map(|key| format!("{key}\n")).collect::<String>());
    let values: Vec<String> = listed.iter().map(|key| format!("('{key}')")).collect();
    let table = format!("CREATE TABLE files (path TEXT); INSERT INTO files VALUES {};", values.join(","));
    let postgres = harness::postgres::shared().create_database();
    harness::postgres::shared().psql(&postgres, &table).expect("a table");
    let sqlite = format!("sqlite:{}", bucket.place.path().join("app.db").display());
    let url = format!("{sqlite}?mode=rwc");
    let mut connection =
        <sqlx::SqliteConnection as sqlx::Connection>::connect(&url).await.expect("a database");
    sqlx::raw_sql(sqlx::AssertSqlSafe(table)).execute(&mut connection).await.expect("a table");

    let rows: Vec<Row> = listed.iter().map(|key| row(key.as_str())).collect();
    let (first, second) = rows.split_at(700);
    let folder = bucket.place.path().join("inventories");
    let csv_path = write_inventory(&folder.join("csv"), "CSV", &bucket.name, &[first, second]);
    let parquet_path = write_inventory(&folder.join("parquet"), "Parquet", &bucket.name, &[first, second]);
    // The same inventory in a bucket.
    let inventories = Bucket::s3().await;
    let base = folder.join("parquet");
    for path in [
        "inventory/source/daily/data/0.parquet",
        "inventory/source/daily/data/1.parquet",
        "inventory/source/daily/2026-01-01T00-00Z/manifest.json",
    ] {
        let bytes = std::fs::read(base.join(path)).expect("a file");
        let key = wharfinger_lifecycle::key::ObjectKey::from_foreign_bucket(path).expect("a key");
        let mode = wharfinger_stores::WriteMode::Overwrite;
        inventories.store.put(&key, bytes.into(), mode).await.expect("put");
    }
    let stored = format!("{}/inventory/source/daily/2026-01-01T00-00Z/manifest.json", inventories.url);

    let query = "SELECT path FROM files";
    let sources: [&[&str]; 6] = [
        &["--keys", "keys"],
        &["--sql", query, "--database", &postgres],
        &["--sql", query, "--database", &sqlite],
        &["--inventory", &csv_path],
        &["--inventory", &parquet_path],
        &["--inventory", &stored],
    ];
    let mut reports = Vec::new();
    for source in sources {
        let lists = ["--json", "--orphans-to", "orphans.jsonl", "--missing-to", "missing.jsonl"];
        let found = report(&bucket.run(&[source, &lists].concat()).expect(0));
        assert_eq!(
            (&found["orphans"]["objects"], &found["missing"]["keys"]),
            (&orphans.into(), &missing.into()),
            "{source:?}"
        );
        let read = |name: &str| std::fs::read_to_string(bucket.place.path().join(name)).expect("a list");
        reports.push((
            found["orphans"].clone(),
            read("orphans.jsonl"),
            read("missing.jsonl").replace(char::is_numeric, ""),
        ));
    }
    for report in &reports[1..] {
        assert_eq!((&report.0, &report.1), (&reports[0].0, &reports[0].1));
        assert_eq!(report.2.lines().count(), missing);
    }
}
