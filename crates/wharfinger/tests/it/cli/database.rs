//! A database that cannot be used: `serve` and `doctor` print one line with what to do and without the password.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use harness::postgres::Postgres;
use harness::proxy::Proxy;

use super::program::{Place, Ran};

const SECRET: (&str, &str) = ("WHARFINGER_JWT_SECRET", "0123456789abcdef0123456789abcdef");

fn serve(url: &str) -> Ran {
    Place::new().run_with(&[("WHARFINGER_DATABASE_URL", url), SECRET], &["serve", "--listen", "127.0.0.1:0"])
}

/// The last line of `serve` and the finding of `doctor` contain these texts and no password.
#[track_caller]
fn expect_reported(url: &str, texts: &[&str]) {
    let started = serve(url).expect(1);
    let last = started.stderr.lines().last().expect("a line");
    assert_eq!(started.stderr.lines().filter(|line| !line.starts_with('{')).count(), 1, "{started:?}");
    let doctor = Place::new().run_with(&[("WHARFINGER_DATABASE_URL", url), SECRET], &["doctor"]).expect(1);
    let found = doctor.stdout.lines().find(|line| line.starts_with("FAIL")).expect("a finding");
    for line in [last, found] {
        assert!(line.contains("WHARFINGER_DATABASE_URL") && !line.contains("sesame"), "{line}");
        for text in texts {
            assert!(line.contains(text), "{text} in {line}");
        }
    }
}

#[test]
fn refusals_of_a_database_server_are_reported_with_what_to_do() {
    let postgres = Postgres::start().expect("a separate server");
    let admin = postgres.admin_url();
    let folder = postgres.folder().expect("a local server");
    let rules = folder.join("data/pg_hba.conf");
    let rules_before = std::fs::read_to_string(&rules).expect("rules");
    std::fs::write(&rules, format!("host all guarded 127.0.0.1/32 scram-sha-256\n{rules_before}"))
        .expect("written");
    postgres.psql(&admin, "CREATE ROLE guarded LOGIN PASSWORD 'open sesame'").expect("a role");
    postgres.psql(&admin, "CREATE ROLE poor LOGIN").expect("a role");
    postgres.psql(&admin, "SELECT pg_reload_conf()").expect("reloaded");
    let at = format!("127.0.0.1:{}", postgres.port());

    let wrong = format!("postgres://guarded:sesame@{at}/postgres");
    expect_reported(&wrong, &["password", "guarded", &at, "Correct the user and password"]);
    expect_reported(
        &format!("postgres://postgres@{at}/nowhere"),
        &["nowhere", "does not exist", "createdb nowhere"],
    );
    expect_reported(
        &format!("postgres://missing_user:sesame@{at}/postgres"),
        &["missing_user", "does not exist"],
    );
    let database = postgres.create_database();
    let poor = database.replace("postgres@", "poor@");
    assert_ne!(poor, database);
    expect_reported(
        &poor,
        &["poor", "may not create the schema", "CREATE SCHEMA \"wharfinger\" AUTHORIZATION poor"],
    );
    postgres.psql(&database, "CREATE SCHEMA wharfinger").expect("a schema");
    let grant = "GRANT CREATE, USAGE ON SCHEMA \"wharfinger\" TO poor";
    expect_reported(&poor, &["poor", "may not create tables", grant]);

    // When the tables exist, the right to create them is not needed.
    let place = Place::new();
    place.run_with(&[("WHARFINGER_DATABASE_URL", &database), SECRET], &["migrate"]).expect(0);
    let grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA wharfinger TO poor";
    postgres.psql(&database, grant).expect("granted");
    postgres.psql(&database, "GRANT USAGE ON SCHEMA wharfinger TO poor").expect("granted");
    place.run_with(&[("WHARFINGER_DATABASE_URL", &poor), SECRET], &["migrate"]).expect(0);
    place.run_with(&[("WHARFINGER_DATABASE_URL", &poor), SECRET], &["quota", "show", "t"]).expect(0);
}

/// Another application has a `files` table in the same database.
#[test]
fn tables_of_other_applications_are_kept_and_reported() {
    let postgres = harness::postgres::shared();
    let database = postgres.create_database();
    postgres.psql(&database, "CREATE TABLE public.files (name TEXT)").expect("a table");
    postgres.psql(&database, "INSERT INTO public.files VALUES ('theirs')").expect("a row");
    let place = Place::new();
    let settings = [("WHARFINGER_DATABASE_URL", database.as_str()), SECRET];
    place.run_with(&settings, &["migrate"]).expect(0);
    let doctor = place.run_with(&settings, &["doctor"]).expect(0).stdout;
    assert!(doctor.contains("tables of other applications, which are not touched: public.files"), "{doctor}");
    assert_eq!(postgres.psql(&database, "SELECT name FROM public.files").expect("a name").trim(), "theirs");

    // Another schema name works. Both commands refuse a schema with tables of another application.
    let named = [settings[0], SECRET, ("WHARFINGER_DATABASE_SCHEMA", "uploads")];
    place.run_with(&named, &["migrate"]).expect(0);
    let count = "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'uploads' AND tablename = 'files'";
    assert_eq!(postgres.psql(&database, count).expect("counted").trim(), "1");
    let public = [settings[0], SECRET, ("WHARFINGER_DATABASE_SCHEMA", "public")];
    for command in ["migrate", "doctor"] {
        let ran = place.run_with(&public, &[command]).expect(1);
        let output = format!("{}{}", ran.stdout, ran.stderr);
        assert!(output.contains("tables of another application (files)"), "{output}");
        assert!(output.contains("WHARFINGER_DATABASE_SCHEMA"), "{output}");
    }
}

#[test]
fn an_unreachable_database_is_retried_and_then_reported() {
    let ran = serve("postgres://unknown:sesame@127.0.0.1:1/none").expect(1);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let [warning, last] = lines[..] else { panic!("one warning and one line: {ran:?}") };
    assert!(warning.contains("\"level\":\"WARN\"") && warning.contains("cannot be used yet"), "{warning}");
    assert!(last.contains("WHARFINGER_DATABASE_URL: postgres://unknown@127.0.0.1:1/none: "), "{last}");
    assert!(last.contains("Start the server, or correct the address"), "{last}");
    assert!(!ran.stderr.contains("sesame"), "{ran:?}");
}

#[test]
fn a_database_that_starts_late_is_used() {
    let url = harness::postgres::shared().create_database();
    let port = harness::postgres::shared().port();
    let refusing = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::to(refusing.local_addr().expect("bound")).expect("a proxy");
    let url = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()));
    let place = Place::new();
    let log = std::fs::File::create(place.path().join("log")).expect("a log");
    let mut command = place.command(&["migrate"]);
    command.env("WHARFINGER_DATABASE_URL", &url).stdout(Stdio::null()).stderr(log);
    let mut migrating = command.spawn().expect("the program starts");
    // The first connection is closed before the address leads to the database.
    refusing.set_nonblocking(true).expect("set");
    while refusing.accept().is_err() {
        assert!(migrating.try_wait().expect("a child").is_none(), "{}", place.log());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    proxy.point_at(("127.0.0.1", port)).expect("redirected");
    assert!(migrating.wait().expect("it ends").success(), "{}", place.log());
    assert!(place.log().contains("cannot be used yet"), "the wait is not logged: {}", place.log());
}

/// A fake server that sends the first messages of PostgreSQL 12, which contain its version.
#[test]
fn a_database_server_that_is_too_old_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut length = [0; 4];
            while stream.read_exact(&mut length).is_ok() {
                let mut message = vec![0; u32::from_be_bytes(length) as usize - 4];
                stream.read_exact(&mut message).expect("a whole message");
                // Decline TLS. The next message is the startup message.
                if message.starts_with(&80_877_103_u32.to_be_bytes()) {
                    stream.write_all(b"N").expect("written");
                    continue;
                }
                let mut messages = b"R\0\0\0\x08\0\0\0\0".to_vec();
                messages.extend(b"S\0\0\0\x19server_version\x0012.22\0");
                messages.extend(b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x01Z\0\0\0\x05I");
                stream.write_all(&messages).expect("written");
                break;
            }
        }
    });
    expect_reported(
        &format!("postgres://unknown@{address}/none"),
        &["PostgreSQL 12 is too old", "13 or newer"],
    );
}
