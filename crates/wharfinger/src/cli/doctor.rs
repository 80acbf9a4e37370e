//! `wharfinger doctor`: checks each configured backend, and prints what is wrong and how to fix it.

mod blobs;
mod engines;
mod ingest;
mod notify;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use wharfinger_catalog::{Catalog, CatalogError, CatalogUrl, PgvectorState, SCHEMA_VERSION, Scope};

use super::output::line;
use super::{Failure, catalog_options};
use crate::auth::TokenKeys;
use crate::clock::Clock;
use crate::config::{Flags, Secrets, Settings, prepare_secrets};
use crate::core::catalog_error_text;
use crate::pipeline::stage_workers;

#[derive(Args)]
pub(super) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Accept the store for this catalog: after a restore of the database, or to start with a new store
    #[arg(long)]
    accept_store: bool,
    /// Send to the webhook again, after its receiver answered 410 Gone
    #[arg(long)]
    enable_webhook: bool,
}

struct Finding {
    what: &'static str,
    ok: bool,
    detail: String,
}

/// At most this many unreadable rows are listed.
const UNREADABLE_SHOWN: usize = 5;

/// A larger difference makes deadlines visibly wrong.
const CLOCK_SKEW_MS_MAX: i64 = 2_000;

pub(super) async fn run(flags: &Flags, arguments: Arguments) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    let mut findings = vec![good("settings", "all values are valid")];
    match prepare_secrets(&settings) {
        Ok(secrets) => {
            findings.push(check_tokens(&settings, &secrets));
        }
        Err(error) => findings.push(bad("secrets", error.to_string())),
    }
    check_catalog(&settings, &arguments, &mut findings).await;

    let wrong = findings.iter().filter(|finding| !finding.ok).count();
    if arguments.json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| serde_json::json!({ "check": f.what, "ok": f.ok, "detail": f.detail }))
            .collect();
        line(format!("{}", serde_json::json!({ "ok": wrong == 0, "checks": list })));
    } else {
        for finding in &findings {
            line(format!(
                "{} {:<10} {}",
                if finding.ok { "ok  " } else { "FAIL" },
                finding.what,
                finding.detail
            ));
        }
    }
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::Failed("one check failed".into())),
        n => Err(Failure::Failed(format!("{n} checks failed"))),
    }
}

fn good(what: &'static str, detail: impl ToString) -> Finding {
    Finding { what, ok: true, detail: detail.to_string() }
}

fn bad(what: &'static str, detail: impl ToString) -> Finding {
    Finding { what, ok: false, detail: detail.to_string() }
}

fn check_tokens(settings: &Settings, secrets: &Secrets) -> Finding {
    match TokenKeys::load(settings, secrets) {
        Ok(_) if secrets.jwt_secret.is_some() => good("tokens", "signed with this server's HS256 secret"),
        Ok(_) => good("tokens", "only tokens of your issuer are accepted (JWKS)"),
        Err(error) => bad("tokens", error),
    }
}

async fn check_catalog(settings: &Settings, arguments: &Arguments, findings: &mut Vec<Finding>) {
    let remedy = match &settings.database {
        CatalogUrl::Sqlite(path) => format!("Check that this user may write to {}", path.display()),
        CatalogUrl::Postgres(_) => {
            "Check WHARFINGER_DATABASE_URL, that the server runs, and that this user may create tables".into()
        }
    };
    if let CatalogUrl::Sqlite(path) = &settings.database
        && !path.exists()
    {
        findings.push(good("catalog", format!("{} will be created at the first start", path.display())));
        if arguments.accept_store {
            findings
                .push(bad("store", "not accepted. Run `wharfinger migrate` first, then this command again"));
        }
        return check_the_rest(settings, None, findings).await;
    }
    // Without waiting for the database: doctor reports the state now.
    let catalog = match Catalog::open_with_timeout(catalog_options(settings), Duration::ZERO).await {
        Ok(catalog) => catalog,
        Err(error @ CatalogError::Unusable(_)) => {
            return findings.push(bad("catalog", catalog_error_text(&error)));
        }
        Err(error) => return findings.push(bad("catalog", format!("{error}. {remedy}"))),
    };
    let clock = Clock::system();
    let step = match catalog.schema_step().await {
        Ok(step) => step,
        Err(error @ CatalogError::Unusable(_)) => {
            return findings.push(bad("catalog", catalog_error_text(&error)));
        }
        Err(error) => return findings.push(bad("catalog", format!("{error}. {remedy}"))),
    };
    if step != SCHEMA_VERSION
        && let Err(error) = catalog.check_may_migrate().await
    {
        return findings.push(bad("catalog", catalog_error_text(&error)));
    }
    match catalog.foreign_tables().await {
        Ok(None) => {}
        Ok(Some(names)) => findings.push(good(
            "catalog",
            format!(
                "the database also has tables of other applications, which are not touched: {names}. Wharfinger uses \
                 schema `{}` (WHARFINGER_DATABASE_SCHEMA)",
                settings.database_schema
            ),
        )),
        Err(error) => findings.push(bad("catalog", error)),
    }
    if step == SCHEMA_VERSION {
        match catalog.missing_indexes().await {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => findings.push(bad(
                "catalog",
                format!("indexes are missing ({}). Run `wharfinger migrate`", missing.join(", ")),
            )),
            Err(error) => findings.push(bad("catalog", error)),
        }
    }
    findings.push(match step {
        SCHEMA_VERSION => good("catalog", "reachable, the schema is up to date"),
        0 => good("catalog", "reachable and empty: the first start (or `wharfinger migrate`) creates the schema"),
        _ => good("catalog", "reachable, the schema is of an older version: the next start (or `wharfinger migrate`) updates it"),
    });
    check_clock(&catalog, &clock, findings).await;
    if step == SCHEMA_VERSION {
        if arguments.accept_store {
            findings.push(blobs::accept_store(settings, &catalog, clock.now()).await);
        }
        if arguments.enable_webhook {
            findings.push(notify::enable_again(settings, &catalog).await);
        }
        check_the_rest(settings, Some(&catalog), findings).await;
        findings.push(check_search(&catalog).await);
        check_contents(&catalog, findings).await;
    } else {
        if arguments.accept_store {
            findings
                .push(bad("store", "not accepted. Run `wharfinger migrate` first, then this command again"));
        }
        check_the_rest(settings, None, findings).await;
    }
    catalog.close().await;
}

/// Everything except the catalog. Without one, checks that read it are skipped.
async fn check_the_rest(settings: &Settings, catalog: Option<&Catalog>, findings: &mut Vec<Finding>) {
    blobs::check(settings, catalog, findings).await;
    engines::check(settings, catalog, findings).await;
    notify::check(settings, catalog, findings).await;
    ingest::check(settings, findings).await;
}

async fn check_clock(catalog: &Catalog, clock: &Clock, findings: &mut Vec<Finding>) {
    match catalog.server_time().await {
        Ok(Some(server)) if (server - clock.now()).abs() > CLOCK_SKEW_MS_MAX => findings.push(bad(
            "clock",
            format!(
                "this machine's clock differs from the database server's by {} ms. Run NTP on both",
                clock.now() - server
            ),
        )),
        Ok(Some(_)) => findings.push(good("clock", "agrees with the database server's clock")),
        Ok(None) => {}
        Err(error) => findings.push(bad("clock", error)),
    }
}

/// Search works with and without pgvector.
async fn check_search(catalog: &Catalog) -> Finding {
    let found = match catalog.pgvector().await {
        Ok(PgvectorState::Ready(version)) => catalog.vectors_to_copy().await.map(|waiting| match waiting {
            0 => format!("runs in the database (pgvector {version})"),
            n => format!("runs in the database (pgvector {version}). Workers still have to copy {n} vectors"),
        }),
        Ok(PgvectorState::NotPrepared(version)) => {
            Ok(format!("runs in this program. The next start will use pgvector {version}"))
        }
        Ok(PgvectorState::Unusable(why)) => Ok(format!("runs in this program, without pgvector: {why}")),
        Ok(PgvectorState::Absent) => Ok("runs in this program: the database has no pgvector".into()),
        Err(error) => Err(error),
    };
    found.map_or_else(|error| bad("search", error), |detail| good("search", detail))
}

async fn check_contents(catalog: &Catalog, findings: &mut Vec<Finding>) {
    match catalog.unreadable_rows(UNREADABLE_SHOWN + 1).await {
        Ok(rows) if rows.is_empty() => {}
        Ok(rows) => {
            let shown = rows.iter().take(UNREADABLE_SHOWN);
            let list: Vec<String> =
                shown.map(|row| format!("{} {} ({})", row.table, row.id, row.error)).collect();
            let more = if rows.len() > UNREADABLE_SHOWN { " and more" } else { "" };
            findings.push(bad(
                "rows",
                format!(
                    "these rows cannot be read and are skipped: {}{more}. Repair or delete them (table unreadable_rows)",
                    list.join("; ")
                ),
            ));
        }
        Err(error) => findings.push(bad("rows", error)),
    }
    let is_terminal = std::io::stderr().is_terminal();
    let progress = |done: usize, of: usize| {
        if is_terminal {
            eprint!("\rchecking the catalog: rule {} of {of}", done + 1);
        }
    };
    let audited = catalog.audit_with(progress).await;
    if is_terminal {
        eprint!("\r\x1b[K");
    }
    match audited {
        Ok(broken) if broken.is_empty() => findings.push(good("audit", "all counters and rules hold")),
        Ok(broken) => {
            let list = broken.join("; ");
            findings.push(bad("audit", format!("{list}. `wharfinger quota sync` corrects quota counters")));
        }
        Err(error) => findings.push(bad("audit", error)),
    }
    match catalog.cleanup_counts(&Scope::All).await {
        Ok(counts) if counts.exhausted == 0 => {
            findings.push(good("cleanups", format!("{} pending, none exhausted", counts.pending)));
        }
        Ok(counts) => findings.push(bad(
            "cleanups",
            format!(
                "{} exhausted: the store refuses these deletes. Find the cause with GET \
                 /api/v1/maintenance/cleanup/pending, fix it, then POST /api/v1/maintenance/cleanup/trigger",
                counts.exhausted
            ),
        )),
        Err(error) => findings.push(bad("cleanups", error)),
    }
    match stage_workers::without_worker(catalog, Clock::system().now()).await {
        Ok(stages) if stages.is_empty() => {
            findings.push(good("stages", "no file waits for a stage without a worker"));
        }
        Ok(stages) => {
            let list: Vec<String> = stages.iter().map(stage_workers::warning).collect();
            let remedy = "Start a process with the role worker, or the outside worker of that stage";
            findings.push(bad("stages", format!("{}. {remedy}", list.join("; "))));
        }
        Err(error) => findings.push(bad("stages", error)),
    }
}
