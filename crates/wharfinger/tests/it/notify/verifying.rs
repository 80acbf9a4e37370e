//! Runs the verification examples of the documentation: they accept sent messages and reject all others.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::SECRET;
use super::receiver::Receiver;
use crate::test_app::{Database, TestEnv};

const DOCUMENT: &str = include_str!("../../../../../docs/api.md");

/// The first block of this language in the section about webhooks.
fn example(language: &str) -> &'static str {
    let section = DOCUMENT.split("## Webhooks").nth(1).expect("a section");
    let block = section.split(&format!("```{language}\n")).nth(1).expect("a block");
    block.split("```").next().expect("its end")
}

/// Runs an example as a separate program, and returns its verdict for each case.
fn verdicts(command: &[&str], program: &str, cases: &Value) -> Vec<bool> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("example");
    std::fs::write(&path, program).expect("a file");
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example starts");
    let mut input = child.stdin.take().expect("an input");
    input.write_all(cases.to_string().as_bytes()).expect("written");
    drop(input);
    let output = child.wait_with_output().expect("the example ends");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("a list of verdicts")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_examples_verify_webhooks() {
    let receiver = Receiver::start().await;
    let rotated = format!("whsec_{} {SECRET}", "Ab12".repeat(8));
    let settings = [
        ("WEBHOOK_URL", receiver.url.as_str()),
        ("WEBHOOK_SECRET", rotated.as_str()),
        ("WEBHOOK_ALLOW_PRIVATE", "true"),
    ];
    // The examples read the clock of the machine.
    let env = TestEnv::in_real_time(Database::Sqlite, &settings);
    let server = env.start().await;
    server.me().upload("größe.txt", b"abc").await;
    server.settle().await;
    let [got] = &receiver.got()[..] else { panic!("one message") };
    let valid = json!({
        "secret": SECRET,
        "headers": {
            "webhook-id": got.header("webhook-id"),
            "webhook-timestamp": got.header("webhook-timestamp"),
            "webhook-signature": got.header("webhook-signature"),
        },
        "body": String::from_utf8(got.raw.to_vec()).expect("text"),
    });
    let with = |path: &str, value: String| {
        let mut case = valid.clone();
        *case.pointer_mut(path).expect("a member") = value.into();
        case
    };
    let sent_at: i64 = got.header("webhook-timestamp").parse().expect("a time");
    let signatures = got.header("webhook-signature");
    let cases = json!([
        valid,
        with("/secret", rotated.split(' ').next().expect("the new secret").to_owned()),
        with("/secret", format!("whsec_{}", "A".repeat(32))),
        with("/body", valid["body"].as_str().expect("text").replace("abc", "abd") + " "),
        with("/headers/webhook-id", "another".into()),
        with("/headers/webhook-timestamp", (sent_at + 1).to_string()),
        with("/headers/webhook-timestamp", (sent_at - 3_600).to_string()),
        with("/headers/webhook-signature", signatures.replace("v1,", "v2,")),
        with("/headers/webhook-signature", "v1,AAAA".into()),
        with("/headers/webhook-signature", String::new()),
    ]);
    let mut expected = vec![false; 10];
    expected[..2].fill(true);
    let python = format!(
        "{}\nimport json, sys\ncases = json.load(sys.stdin)\nprint(json.dumps([verify(c['secret'], c['headers'], \
         c['body'].encode()) for c in cases]))\n",
        example("python")
    );
    assert_eq!(verdicts(&["python3"], &python, &cases), expected);
    let node = format!(
        "{}\nconst cases = JSON.parse(require('node:fs').readFileSync(0, 'utf8'))\n\
         console.log(JSON.stringify(cases.map((c) => verify(c.secret, c.headers, Buffer.from(c.body)))))\n",
        example("js")
    );
    assert_eq!(verdicts(&["node"], &node, &cases), expected);
}
