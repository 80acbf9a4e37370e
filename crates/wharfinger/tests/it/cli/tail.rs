//! `wharfinger tail`: prints what happens on a server, each event once, also across restarts of the server.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::program::{Place, Served};

const STAGES: (&str, &str) = ("PIPELINE_STAGES", "extract");
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running `tail`.
struct Tail {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

/// The lines of a pipe, as they come.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Tail {
    fn start(place: &Place, server: &str, arguments: &[&str]) -> Tail {
        let mut command = place.command(&[&["tail", "--server", server], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (stdout, stderr) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        Tail { child, stdout: lines(stdout), stderr: lines(stderr) }
    }

    /// Waits for a line on standard error; returns the lines up to it.
    #[track_caller]
    fn said(&self, text: &str) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            let line = self.stderr.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{error}: {said:?}"));
            said.push(line);
            if said.last().is_some_and(|line| line.contains(text)) {
                return said;
            }
        }
    }

    /// The printed lines up to one that contains the text.
    #[track_caller]
    fn until(&self, text: &str) -> Vec<String> {
        let (mut printed, started) = (Vec::new(), Instant::now());
        loop {
            let line = self.stdout.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|error| panic!("{error}, no {text:?} in {printed:?}"));
            printed.push(line);
            if printed.last().is_some_and(|line| line.contains(text)) {
                return printed;
            }
            assert!(started.elapsed() < TIMEOUT, "no {text:?} in {printed:?}");
        }
    }

    /// What is printed within some polls.
    fn more(&self) -> Vec<String> {
        let mut more = Vec::new();
        loop {
            match self.stdout.recv_timeout(Duration::from_secs(5)) {
                Ok(line) => more.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return more,
            }
        }
    }

    /// Ends it like Ctrl-C; returns the exit code.
    fn interrupt(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &pid]).status().expect("kill runs").success());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn call(server: &Served, token: &str, method: Method, path: &str) {
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    let request = http.request(method, format!("{}{path}", server.url)).bearer_auth(token);
    let answer = request.json(&json!({})).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
}

/// Uploads a file as user `local` of the tenant `default`; returns its id.
fn put(place: &Place, server: &Served, name: &str, bytes: &[u8]) -> String {
    place.write(name, bytes);
    let put = place.run(&["put", "--server", &server.url, "--json", name]).expect(0).json();
    put[0]["fileId"].as_str().expect("an id").to_owned()
}

async fn delete(place: &Place, server: &Served, file: &str) {
    let token = place.token("default", "local", "user");
    call(server, &token, Method::DELETE, &format!("/api/v2/files/{file}")).await;
}

fn of_type<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

fn json_lines(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_is_printed_once() {
    let place = Place::new();
    let server = place.serve(&[STAGES]);
    let address = server.address().to_owned();
    // From before the start.
    let earlier = put(&place, &server, "earlier.txt", b"earlier");
    delete(&place, &server, &earlier).await;
    let mut before = Tail::start(&place, &server.url, &["--since", "1h", "--json"]);
    let events = json_lines(&before.until("pending-cleanups"));
    assert_eq!(of_type(&events, "deletion")[0]["fileId"], earlier.as_str(), "{events:?}");
    assert_eq!(before.interrupt(), Some(0));

    let mut tail = Tail::start(&place, &server.url, &["--json"]);
    tail.said("Following http://");
    let broken = put(&place, &server, "broken.pdf", b"%PDF-1.7 and nothing else");
    let events = json_lines(&tail.until("file-failed"));
    let notification = of_type(&events, "notification")[0];
    assert_eq!((&notification["fileId"], &notification["fileName"]), (&json!(broken), &json!("broken.pdf")));
    delete(&place, &server, &broken).await;
    let printed = json_lines(&tail.until(&format!("uploads/default/local/{broken}")));
    let deletion = of_type(&printed, "deletion")[0];
    assert_eq!((&deletion["reason"], &deletion["by"]), (&json!("deleted"), &json!("user:local")));
    let operator = place.token("ops", "olga", "operator");
    // It finds nothing to do, so it is not printed.
    call(&server, &operator, Method::POST, "/api/v2/maintenance/sweeps/quota-sync/run").await;
    let more = json_lines(&tail.more());
    let all: Vec<Value> = printed.into_iter().chain(more).collect();
    assert!(all.iter().all(|event| event["sweep"] != "quota-sync" && event["fileId"] != earlier.as_str()));
    let runs = of_type(&all, "sweepRun");
    assert!(
        runs.iter().any(|run| run["sweep"] == "pending-cleanups" && run["result"]["done"] == 1),
        "{all:?}"
    );

    // The server restarts. What happened before `tail` noticed is printed too, and nothing twice.
    assert!(server.terminate().success());
    tail.said("Trying again");
    let server = place.serve_at(&address, &[STAGES]);
    let after = put(&place, &server, "after.txt", b"after");
    delete(&place, &server, &after).await;
    let printed = json_lines(&tail.until(&format!("uploads/default/local/{after}")));
    tail.said("Following http://");
    let again: Vec<Value> = printed.into_iter().chain(json_lines(&tail.more())).collect();
    assert!(again.iter().all(|event| event["fileId"] != broken.as_str()), "{again:?}");
    assert_eq!(of_type(&again, "deletion").iter().filter(|one| one["fileId"] == after.as_str()).count(), 1);
    assert_eq!(tail.interrupt(), Some(0));
    assert!(server.terminate().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_token_may_not_read_is_left_out_and_said_once() {
    let place = Place::new();
    let server = place.serve(&[STAGES]);
    let (user, admin) = (place.token("default", "local", "user"), place.token("default", "amos", "admin"));
    let mut as_user = Tail::start(&place, &server.url, &["--token", &user]);
    let mut as_admin = Tail::start(&place, &server.url, &["--token", &admin]);
    let said = as_user.said("Following http://");
    assert_eq!(said.iter().filter(|line| line.starts_with("Left out:")).count(), 2, "{said:?}");
    assert!(said[0].contains("deleted objects") && said[1].contains("runs of sweeps"), "{said:?}");
    let said = as_admin.said("Following http://");
    assert_eq!(said.iter().filter(|line| line.starts_with("Left out:")).count(), 1, "{said:?}");

    let broken = put(&place, &server, "broken.pdf", b"%PDF-1.7 and nothing else");
    let printed = as_user.until("broken.pdf");
    assert!(printed[0].contains("  notification  file-failed: "), "{printed:?}");
    delete(&place, &server, &broken).await;
    let printed = as_admin.until(&broken);
    assert!(printed[0].contains("  deleted       uploads/default/local/"), "{printed:?}");
    assert!(printed[0].ends_with("deleted, by user:local"), "{printed:?}");
    assert_eq!((as_user.interrupt(), as_admin.interrupt()), (Some(0), Some(0)));
    assert!(as_user.stderr.iter().next().is_none(), "it is said once");

    let worker = place.token("default", "wim", "worker");
    let ran = place.run(&["tail", "--server", &server.url, "--token", &worker]).expect(1);
    assert!(ran.stderr.contains("Left out: notifications") && ran.stderr.contains("403"), "{ran:?}");
    let ran = place.run(&["tail", "--server", &server.url, "--token", "nonsense"]).expect(1);
    assert!(ran.stderr.contains("401"), "{ran:?}");
    place.run(&["tail", "--since", "yesterday"]).expect(2);
}

#[test]
fn it_waits_for_a_server_that_does_not_run_yet() {
    let place = Place::new();
    // The schema, the secrets and a free port.
    let server = place.serve(&[]);
    let address = server.address().to_owned();
    assert!(server.terminate().success());
    let mut tail = Tail::start(&place, &format!("http://{address}"), &[]);
    let said = tail.said("Trying again");
    assert!(said[0].contains(&format!("No server at http://{address}")), "{said:?}");
    let server = place.serve_at(&address, &[]);
    tail.said("Following http://");
    assert_eq!(tail.interrupt(), Some(0));
    assert!(server.terminate().success());
}
