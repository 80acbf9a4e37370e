//! `wharfinger serve`: the first output works as printed, written files are private, and a stop loses no upload.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::Body;
use serde_json::Value;

use super::program::{Place, Served};

/// The commands of the greeting, as one shell script.
fn commands(greeting: &[String]) -> String {
    let start = greeting.iter().position(|line| line.starts_with("export ")).expect("a token");
    let export = greeting[start].as_str();
    let pasted = greeting[start + 1..].iter().filter(|line| line.starts_with("  ")).map(String::as_str);
    [export].into_iter().chain(pasted).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_greeting_can_be_pasted_and_works() {
    let place = Place::new();
    // The default stages.
    let mut served = place.serve(&[("PIPELINE_STAGES", "scan,extract,chunk,embed")]);
    let greeting = served.read_until("or: wharfinger put");
    let elsewhere = Place::new();
    let script = commands(&greeting);
    assert!(script.contains("curl") && script.contains(&served.url), "{script}");
    assert!(!script.contains("eyJ"), "a token is printed to a log: {script}");
    let shell = shell(&script).current_dir(elsewhere.path()).output().expect("sh runs");
    let (out, err) = (String::from_utf8_lossy(&shell.stdout), String::from_utf8_lossy(&shell.stderr));
    assert!(shell.status.success(), "{out}\n{err}\n{script}");
    assert!(out.contains("\"status\":\"ready\"") && out.ends_with("hello, world\n"), "{out}");

    // The other command of the greeting, in the folder of the server.
    place.write("hello.txt", "hello, world\n");
    let environment = [("WHARFINGER_LISTEN", served.address())];
    let put = place.run_with(&environment, &["put", "hello.txt"]).expect(0);
    assert!(put.stdout.contains("1 uploaded"), "{put:?}");
    assert!(served.terminate().success());
}

/// A shell whose `PATH` contains the program.
pub fn shell(script: &str) -> Command {
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_wharfinger")).parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-euc", script]).env("PATH", path);
    shell
}

#[test]
fn a_token_is_printed_to_a_terminal() {
    let place = Place::new();
    let serve = format!("exec {} serve --listen 127.0.0.1:0", env!("CARGO_BIN_EXE_wharfinger"));
    let mut child = Command::new("script")
        .args(["-qfec", &serve, "/dev/null"])
        .current_dir(place.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("script runs");
    let output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let lines = std::io::BufRead::lines(output).map_while(Result::ok);
    let shown = lines.take(40).find(|line| line.contains("/#token=eyJ"));
    child.kill().expect("ended");
    child.wait().expect("ended");
    assert!(shown.is_some());
}

/// This holds even if other users can enter the data folder.
#[test]
fn files_that_the_program_writes_are_private() {
    let place = Place::new();
    std::fs::create_dir(place.data()).expect("a folder");
    std::fs::set_permissions(place.data(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let served = place.serve(&[("PIPELINE_STAGES", "scan,extract")]);
    place.write("a.txt", "private");
    let environment = [("WHARFINGER_LISTEN", served.address())];
    place.run_with(&environment, &["put", "a.txt"]).expect(0);
    assert!(served.terminate().success());
    let mut folders = vec![place.data()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let mode = std::fs::metadata(&path).expect("metadata").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} is open to other users", path.display());
            match path.is_dir() {
                true => folders.push(path),
                false => files += 1,
            }
        }
    }
    assert!(files > 4, "the database, secrets, the marker and an object: {files}");
    assert!(place.log().contains("run chmod 700"), "{}", place.log());
}

fn secrets(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let folder = std::fs::read_dir(place.data().join("secrets")).expect("a folder");
    let entries = folder.map(|entry| {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name} is open to other users");
        (name, std::fs::read(entry.path()).expect("a secret"))
    });
    entries.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_keeps_secrets_and_files() {
    let place = Place::new();
    let mut served = place.serve(&[]);
    served.read_until("or: wharfinger put");
    let token = &place.token("default", "local", "operator");
    let created = secrets(&place);
    let names: Vec<&str> = created.keys().map(String::as_str).collect();
    assert_eq!(names, ["jwt.key", "url-signing.key"]);
    let folder = std::fs::metadata(place.data().join("secrets")).expect("a folder");
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    place.write("a.txt", "kept");
    let put =
        place.run(&["put", "a.txt", "--server", &served.url, "--token", token, "--json"]).expect(0).json();
    let file = put[0]["fileId"].as_str().expect("an id").to_owned();
    assert!(served.terminate().success());

    let mut served = place.serve(&[]);
    assert_eq!(secrets(&place), created);
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let path = format!("{}/api/v2/files/{file}/download", served.url);
    let answer = http.get(path).bearer_auth(token).send().await.expect("an answer");
    assert_eq!(answer.text().await.expect("text"), "kept");
    served.signal("INT");
    let output = served.rest();
    assert!(!output.contains("WHARFINGER_TOKEN"), "only the first start prints the token command: {output}");
    assert!(served.wait().success());
    let log = place.log();
    assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "JSON lines: {log}");
    assert_eq!(log.matches("\"message\":\"stopped\"").count(), 2, "{log}");
}

#[test]
fn an_address_in_use_is_reported_with_exit_code_1() {
    let place = Place::new();
    let served = place.serve(&[]);
    let second = Place::new();
    let ran = second.run(&["serve", "--listen", served.address()]).expect(1);
    assert_eq!((ran.stdout.as_str(), ran.stderr.lines().count()), ("", 1), "{ran:?}");
    assert!(ran.stderr.contains("WHARFINGER_LISTEN") && ran.stderr.contains(served.address()), "{ran:?}");
    assert!(served.terminate().success());
}

#[test]
fn the_public_url_is_printed_as_the_address() {
    let place = Place::new();
    let log = std::fs::File::create(place.path().join("log")).expect("a log");
    let mut command = place.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("WHARFINGER_PUBLIC_URL", "https://files.example.com/").stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().expect("the program starts");
    let mut first = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut first).expect("a line");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(first.ends_with(" https://files.example.com\n"), "{first}");
}

/// Repeats the check until it is true.
fn wait_until(what: &str, check: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !check() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn refuses(served: &Served) -> bool {
    std::net::TcpStream::connect(served.address()).is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_upload_is_finished_before_the_server_stops() {
    let place = Place::new();
    let served = place.serve(&[]);
    let token = place.token("t", "u", "user");
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let init = http.post(format!("{}/api/v2/files/init", served.url)).bearer_auth(&token);
    let init = init.body(r#"{"fileName":"a","size":10}"#).send().await.expect("an answer");
    let grant: Value = serde_json::from_str(&init.text().await.expect("text")).expect("JSON");
    let url = grant["uploadUrl"].as_str().expect("a URL").to_owned();
    let file = grant["fileId"].as_str().expect("an id");

    let (first, rest) = (Bytes::from_static(b"first"), Bytes::from_static(b" rest"));
    let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
    let rest = async move {
        resumed.await.expect("resumed");
        Ok::<_, std::io::Error>(rest)
    };
    let body = futures::StreamExt::chain(
        futures::stream::once(std::future::ready(Ok(first))),
        futures::stream::once(rest),
    );
    let upload = tokio::spawn(http.put(url).body(Body::wrap_stream(body)).send());
    let incoming = place.data().join("blobs/.incoming");
    wait_until("the upload starts", || std::fs::read_dir(&incoming).is_ok_and(|folder| folder.count() > 0));
    served.signal("TERM");
    wait_until("the server accepts no connections", || refuses(&served));
    resume.send(()).expect("the upload waits");
    let answer = upload.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 200);
    assert!(served.wait().success());
    let object = place.data().join("blobs/uploads/t/u").join(file);
    assert_eq!(std::fs::read(object).expect("the object"), b"first rest");
}
