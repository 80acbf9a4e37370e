//! Batches that were damaged on disk, and folders of other programs.

use std::collections::BTreeSet;

use wharfinger_lifecycle::key::EventsFolder;

use super::{EventServer, below, gzip, lines};

fn batch(ids: std::ops::Range<u64>) -> Vec<u8> {
    let text: String = ids
        .map(|id| format!("{{\"body\":{{\"id\":{id},\"noise\":\"{:x}\"}}}}\n", id * 2_654_435_761))
        .collect();
    gzip(text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn readable_lines_are_stored_and_damaged_batches_are_kept_unchanged() {
    let mut server = EventServer::new(&[("DLQ_MAX_AGE", "3650d")]);
    let spool = server.spool();
    let put = |name: &str, bytes: &[u8]| {
        let path = spool.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
        std::fs::write(path, bytes).expect("a file");
    };
    let intact = batch(0..1_000);
    put("1700000001_web_1.jsonl.gz", &intact);
    put("sub/1700000002_web_2.jsonl.gz", &[batch(1_000..1_500), batch(1_500..2_000)].concat());
    let truncated = batch(2_000..6_000);
    put("1700000003_web_3.jsonl.gz", &truncated[..truncated.len() / 2]);
    let mut flipped = batch(10_000..14_000);
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x55;
    put("1700000004_web_4.jsonl.gz", &flipped);
    put("1700000005_web_5.jsonl.gz", b"");
    put("1700000006_web_6.jsonl.gz", b"not gzip at all");
    let mixed = gzip(b"{\"body\":{\"id\":20000}}\nnot JSON\n{\"body\":{\"id\":20001}}\n");
    put("1700000007_web_7.jsonl.gz", &mixed);
    put("1700000007_web_7.jsonl.gz.meta.json", b"{\"num_events\":2}");
    std::fs::create_dir(spool.join("1700000008_web_8.jsonl.gz")).expect("a folder with the name of a batch");
    put("notes.txt", b"foreign");
    put(".hidden", b"foreign");

    server.start();
    server.until("dlq_files_current", |files| files == 0.0).await;
    let ids: BTreeSet<u64> = server.ids().await.into_iter().collect();
    assert!((0..2_000).all(|id| ids.contains(&id)), "the intact batches are complete");
    assert!(ids.contains(&2_000) && !ids.contains(&5_999), "the start of the truncated batch is stored");
    assert!(ids.contains(&10_000), "the start of the damaged batch is stored");
    assert!(
        ids.contains(&20_000) && ids.contains(&20_001),
        "the valid lines around an invalid one are stored"
    );
    let raw = server.objects(EventsFolder::Raw).await;
    assert_eq!(raw["2023/11/14/22/1700000001_web_1.jsonl.gz"], intact, "the bytes are unchanged");
    let damaged = server.objects(EventsFolder::Damaged).await;
    let expected = [
        ("1700000003_web_3", &truncated[..truncated.len() / 2]),
        ("1700000004_web_4", &flipped),
        ("1700000005_web_5", b"".as_slice()),
        ("1700000006_web_6", b"not gzip at all"),
        ("1700000007_web_7", &mixed),
    ];
    assert_eq!(damaged.len(), expected.len(), "{:?}", damaged.keys());
    for (name, bytes) in expected {
        assert_eq!(damaged[&format!("2023/11/14/22/{name}.jsonl.gz")], bytes, "{name}");
    }
    assert_eq!(server.metric("wharfinger_dlq_files_damaged_total").await, 5.0);
    let events: usize = raw.values().map(|gz| lines(gz).len()).sum();
    assert_eq!(
        server.metric("dlq_events_reuploaded_total").await,
        events as f64,
        "only events that are under RAW count"
    );
    assert_eq!(server.metric("dlq_events_dropped_total").await, 0.0);
    server.terminate();
    let left: Vec<String> =
        below(&spool).into_keys().filter(|name| !name.starts_with(".wharfinger-")).collect();
    assert_eq!(left, [".hidden", "notes.txt"]);
    assert!(spool.join("1700000008_web_8.jsonl.gz").is_dir());
}

/// A crash leaves segments with incomplete ends.
#[tokio::test(flavor = "multi_thread")]
async fn the_complete_lines_of_a_truncated_segment_are_stored() {
    let mut server = EventServer::new(&[]);
    let folder = server.place.data().join("ingest").join("0");
    std::fs::create_dir_all(&folder).expect("a folder");
    let put = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("a segment");
    put("1750000000_web_1.jsonl", "{\"body\":{\"id\":1}}\n{\"body\":{\"id\":2}}\n{\"body\":{\"i");
    put("1750000000_web_2.jsonl", "{\"body\":{\"id\":3}}\n\0\0\0\0\0\0");
    put("1750000000_web_3.jsonl", "{\"bo");
    put("1750000000_web_4.jsonl", "");
    put("1750000000_web_5.jsonl", "{\"body\":{\"id\":4}}\n\0\0\0\n{\"body\":{\"id\":5}}\n");
    put("notes.txt", "foreign");
    server.start();
    assert_eq!(server.ids_once(5).await, [1, 2, 3, 4, 5]);
    server.until("wharfinger_dlq_files_damaged_total", |files| files == 1.0).await;
    server.terminate();
    let left: Vec<String> = below(&folder).into_keys().filter(|name| !name.starts_with('.')).collect();
    assert_eq!(left, ["notes.txt"]);
    let damaged = server.objects(EventsFolder::Damaged).await;
    assert!(damaged.keys().eq(["2025/06/15/15/1750000000_web_5.jsonl.gz"]), "{:?}", damaged.keys());
    assert_eq!(
        lines(&server.objects(EventsFolder::Raw).await["2025/06/15/15/1750000000_web_5.jsonl.gz"]).len(),
        2
    );
}
