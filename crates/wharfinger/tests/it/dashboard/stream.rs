//! The event stream: who gets which events, and when it ends.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::Value;
use wharfinger::core::Role;

use crate::cli::program::run_on;
use crate::test_app::{Client, Database, TestEnv, caller, on_each_database};

const TIMEOUT: Duration = Duration::from_secs(120);

/// The name of an event and the condition that its data must meet.
type Wanted<'a> = (&'a str, &'a dyn Fn(&Value) -> bool);

struct EventStream {
    answer: Response,
    text: String,
}

impl EventStream {
    async fn open(client: &Client<'_>, query: &str) -> EventStream {
        let request = client.request(Method::GET, &format!("/api/v2/stream{query}"));
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        EventStream { answer, text: String::new() }
    }

    /// The next event. None: the stream has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        tokio::time::timeout(TIMEOUT, self.read_event()).await.expect("in time")
    }

    async fn read_event(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let named = field("event:").map(str::to_owned);
                let data = field("data:").and_then(|data| serde_json::from_str(data).ok());
                self.text = rest.to_owned();
                if let (Some(name), Some(data)) = (named, data) {
                    return Some((name, data));
                }
                continue;
            }
            let piece = self.answer.chunk().await.expect("readable")?;
            self.text.push_str(std::str::from_utf8(&piece).expect("text"));
        }
    }

    async fn next_named(&mut self, name: &str) -> Value {
        self.until(name, |_| true).await
    }

    async fn until(&mut self, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let [data] = self.until_all([(name, &holds)]).await;
        data
    }

    /// Waits for one event of each kind, in any order. Keep-alive lines do not extend the timeout.
    async fn until_all<const N: usize>(&mut self, wanted: [Wanted<'_>; N]) -> [Value; N] {
        let mut found = [const { None }; N];
        let coming = async {
            while found.iter().any(Option::is_none) {
                let (named, data) = self.read_event().await.expect("the stream is open");
                for (place, (name, holds)) in found.iter_mut().zip(&wanted) {
                    if place.is_none() && named == *name && holds(&data) {
                        *place = Some(data.clone());
                    }
                }
            }
        };
        tokio::time::timeout(TIMEOUT, coming).await.expect("in time");
        found.map(|data| data.expect("found above"))
    }
}

async fn each_role_first_gets_every_part_it_may_see(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let every_role = ["dashboard", "trend", "quota"];
    for (role, more) in [
        (Role::User, &[][..]),
        (Role::Admin, &["cleanups"]),
        (Role::Operator, &["cleanups", "sweeps", "spool"]),
    ] {
        let mut stream = EventStream::open(&server.as_user("t", "u", role), "").await;
        let expected: BTreeSet<&str> = every_role.iter().chain(more).copied().collect();
        let mut seen = BTreeSet::new();
        for _ in 0..expected.len() {
            seen.insert(stream.next().await.expect("an event").0);
        }
        assert_eq!(seen.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected, "{role:?}");
    }
}

async fn changes_are_sent_as_they_happen(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let (me, other) = (server.me(), server.as_user("t", "other", Role::User));
    let mut mine = EventStream::open(&me, "").await;
    let mut all = EventStream::open(&server.operator(), "?tenant=t").await;
    let mut theirs = EventStream::open(&other, "").await;
    assert_eq!(mine.next_named("dashboard").await["statusDistribution"]["ready"], 0);
    assert_eq!(theirs.next_named("dashboard").await["statusDistribution"]["ready"], 0);
    me.enqueue("a", b"harmless").await;
    server.settle().await;
    let is_ready = |shown: &Value| shown["statusDistribution"]["ready"] == 1;
    mine.until("dashboard", is_ready).await;
    all.until("dashboard", is_ready).await;
    mine.until("trend", |trend| trend["buckets"][95]["ready"] == 1).await;
    me.enqueue("b", b"harmless too").await;
    server.settle().await;
    let [notification, _] =
        mine.until_all([("notification", &|_| true), ("quota", &|quota| quota["used"] == 20)]).await;
    assert_eq!(notification["kind"], "file-ready");
    // The other user's next event is about his own file.
    other.enqueue("c", b"his").await;
    let seen = theirs.until("dashboard", |shown| shown["queueDepths"]["file-scan"] == 1).await;
    assert_eq!(seen["statusDistribution"]["ready"], 0);
}

async fn a_stream_ends_when_its_token_expires(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let until = server.app.core.clock.now() + 60_000;
    let token = server.app.tokens.mint(&caller("t", "u", Role::User), until).expect("a token");
    let client = Client { server: &server, token };
    let mut stream = EventStream::open(&client, "").await;
    stream.next_named("dashboard").await;
    env.advance(60_000);
    assert_eq!(stream.next_named("bye").await["reason"], "the token has expired");
    assert_eq!(stream.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_service_key_is_revoked() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let run = |arguments: &[&str]| tokio::task::block_in_place(|| run_on(&env, arguments)).expect(0);
    let token = run(&["key", "create", "--role", "operator"]).stdout.trim().to_owned();
    let client = Client { server: &server, token };
    let mut stream = EventStream::open(&client, "").await;
    stream.next_named("dashboard").await;
    run(&["key", "revoke", &client.token]);
    env.advance(60_000);
    assert_eq!(stream.next_named("bye").await["reason"], "the service key was revoked");
    assert_eq!(stream.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_the_process_stops() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let mut stream = EventStream::open(&server.me(), "").await;
    stream.next_named("dashboard").await;
    server.app.core.draining.cancel();
    assert_eq!(stream.next_named("bye").await["reason"], "the server is stopping");
    assert_eq!(stream.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_access_get_no_stream() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let bare = reqwest::get(format!("{}/api/v2/stream", server.url)).await.expect("an answer");
    assert_eq!(bare.status(), 401);
    server.as_user("t", "w", Role::Worker).get("/api/v2/stream").await.expect_problem(403, "forbidden");
    server.me().get("/api/v2/stream?tenant=s").await.expect_problem(403, "forbidden");
}

on_each_database!(
    each_role_first_gets_every_part_it_may_see,
    changes_are_sent_as_they_happen,
    a_stream_ends_when_its_token_expires
);
