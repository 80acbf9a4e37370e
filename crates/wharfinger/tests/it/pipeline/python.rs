//! The example worker of the docs uses only standard Python, and processes files through every stage.

use std::process::Command;

use super::{ALL, chunks, eicar};
use crate::oracle;
use crate::test_app::{Database, TestEnv, on_each_database};
use wharfinger::core::Role;

const WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/worker.py");

async fn the_python_worker_processes_files_through_all_stages(database: Database) {
    let env = TestEnv::with_stages(database, ALL, &[("PIPELINE_BUILTIN_STAGES", "")]);
    let server = env.start().await;
    let me = server.me();
    let text: String = (0..9_000).map(|n| format!("Kai {n} ist \"frei\". Ölfass {n}!\n")).collect();
    let short = me.enqueue("short.txt", "Kaffee aus Santos. Tee aus Assam.".as_bytes()).await;
    let long = me.enqueue("long.txt", text.as_bytes()).await;
    let binary = me.enqueue("binary", &[0xff, 0xfe, 0x00, 0xc3, 0x28]).await;
    let infected = me.enqueue("eicar", &eicar()).await;

    let (url, token) = (server.url.clone(), server.token("ops", "w", Role::Worker));
    let worker = tokio::task::spawn_blocking(move || {
        Command::new("python3")
            .args([WORKER, "--until-idle", "scan", "extract", "chunk", "embed"])
            .env("WHARFINGER_URL", url)
            .env("WHARFINGER_TOKEN", token)
            .output()
            .expect("python3 runs")
    });
    let output = worker.await.expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    for (file, status) in
        [(&short, "ready"), (&long, "ready"), (&binary, "ready"), (&infected, "quarantined")]
    {
        let found = me.file(file).await;
        assert_eq!(found["status"], status, "{found}\n{}", String::from_utf8_lossy(&output.stdout));
    }
    assert_eq!(me.file(&binary).await["textStatus"], "none");
    assert_eq!(me.file(&short).await["textStatus"], "extracted");
    assert_eq!(chunks(&me, &short).await[1]["text"], " Tee aus Assam.");
    assert_eq!(chunks(&me, &long).await.len(), 18_000);
    let hits =
        me.post("/api/v2/search", serde_json::json!({ "query": "Kaffee", "limit": 1 })).await.expect(200);
    assert_eq!(hits["hits"], serde_json::json!([]), "vectors of another model are not compared");
    oracle::catalog_is_sound(&server).await;
}

on_each_database! { the_python_worker_processes_files_through_all_stages }
