//! Changes as server-sent events: whose, which, and until when.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::Value;
use wharfinger::core::Role;

use crate::test_app::{Client, Database, TestEnv, caller, on_each_database};

const PATIENCE: Duration = Duration::from_secs(120);

/// An event's name, and what has to hold of it.
type Wanted<'a> = (&'a str, &'a dyn Fn(&Value) -> bool);

struct Watching {
    answer: Response,
    text: String,
}

impl Watching {
    async fn begin(client: &Client<'_>, query: &str) -> Watching {
        let request = client.request(Method::GET, &format!("/api/v2/stream{query}"));
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Watching { answer, text: String::new() }
    }

    /// The next event; none: it has ended.
    async fn next(&mut self) -> Option<(String, Value)> {
        tokio::time::timeout(PATIENCE, self.following()).await.expect("in time")
    }

    async fn following(&mut self) -> Option<(String, Value)> {
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

    /// Waits for one of each kind, in whichever order they come. Lines that only keep the connection alive do not
    /// make the time any longer.
    async fn until_all<const N: usize>(&mut self, wanted: [Wanted<'_>; N]) -> [Value; N] {
        let mut came = [const { None }; N];
        let coming = async {
            while came.iter().any(Option::is_none) {
                let (named, data) = self.following().await.expect("it goes on");
                for (place, (name, holds)) in came.iter_mut().zip(&wanted) {
                    if place.is_none() && named == *name && holds(&data) {
                        *place = Some(data.clone());
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, coming).await.expect("in time");
        came.map(|data| data.expect("it came"))
    }
}

async fn each_role_begins_with_all_it_may_see(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let everybody = ["dashboard", "trend", "quota"];
    for (role, more) in [
        (Role::User, &[][..]),
        (Role::Admin, &["cleanups"]),
        (Role::Operator, &["cleanups", "sweeps", "spool"]),
    ] {
        let mut watching = Watching::begin(&server.as_user("t", "u", role), "").await;
        let expected: BTreeSet<&str> = everybody.iter().chain(more).copied().collect();
        let mut seen = BTreeSet::new();
        for _ in 0..expected.len() {
            seen.insert(watching.next().await.expect("an event").0);
        }
        assert_eq!(seen.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected, "{role:?}");
    }
}

async fn changes_are_seen_as_they_happen(database: Database) {
    let env = TestEnv::with_stages(database, "scan", &[]);
    let server = env.start().await;
    let (me, other) = (server.me(), server.as_user("t", "other", Role::User));
    let mut mine = Watching::begin(&me, "").await;
    let mut all = Watching::begin(&server.operator(), "?tenant=t").await;
    let mut theirs = Watching::begin(&other, "").await;
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
    let [told, _] =
        mine.until_all([("notification", &|_| true), ("quota", &|quota| quota["used"] == 20)]).await;
    assert_eq!(told["kind"], "file-ready");
    // What the other sees next is his own doing.
    other.enqueue("c", b"his").await;
    let seen = theirs.until("dashboard", |shown| shown["queueDepths"]["file-scan"] == 1).await;
    assert_eq!(seen["statusDistribution"]["ready"], 0);
}

async fn it_ends_with_its_token(database: Database) {
    let env = TestEnv::new(database);
    let server = env.start().await;
    let until = server.app.core.clock.now() + 60_000;
    let token = server.app.tokens.mint(&caller("t", "u", Role::User), until).expect("a token");
    let client = Client { server: &server, token };
    let mut watching = Watching::begin(&client, "").await;
    watching.next_named("dashboard").await;
    env.advance(60_000);
    assert_eq!(watching.next_named("bye").await["reason"], "the token has expired");
    assert_eq!(watching.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_the_process_stops() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let mut watching = Watching::begin(&server.me(), "").await;
    watching.next_named("dashboard").await;
    server.app.core.draining.cancel();
    assert_eq!(watching.next_named("bye").await["reason"], "the server is stopping");
    assert_eq!(watching.next().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_watch_is_told_so() {
    let env = TestEnv::new(Database::Sqlite);
    let server = env.start().await;
    let bare = reqwest::get(format!("{}/api/v2/stream", server.url)).await.expect("an answer");
    assert_eq!(bare.status(), 401);
    server.as_user("t", "w", Role::Worker).get("/api/v2/stream").await.expect_problem(403, "forbidden");
    server.me().get("/api/v2/stream?tenant=s").await.expect_problem(403, "forbidden");
}

on_each_database!(
    each_role_begins_with_all_it_may_see,
    changes_are_seen_as_they_happen,
    it_ends_with_its_token
);
