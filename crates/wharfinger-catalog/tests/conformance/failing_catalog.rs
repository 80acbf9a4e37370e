//! A catalog that fails each call of a write in turn, until the write succeeds.

use std::collections::BTreeSet;

use wharfinger_calls::faults::{Fault, Faults};
use wharfinger_catalog::{Catalog, CatalogError};

use super::every_write::CALLS_MAX;
use super::test_db::TestDb;

/// A process with every outbox target and with Redis, because it sends the most statements.
pub(super) struct FailingCatalog<'s> {
    pub(super) db: &'s TestDb,
    catalog: Catalog,
    faults: Faults,
    pub(super) written: BTreeSet<String>,
}

impl<'s> FailingCatalog<'s> {
    pub(super) async fn new(db: &'s TestDb) -> FailingCatalog<'s> {
        let faults = Faults::at(0, Fault::Fail);
        let catalog = db.with_all_targets_and(faults.clone(), true).await;
        FailingCatalog { db, catalog, faults, written: BTreeSet::new() }
    }

    /// All statements that were sent.
    pub(super) fn statements(&self) -> Vec<String> {
        self.faults.statements()
    }

    /// Fails the write at its first call, then at its second, and so on, until it succeeds.
    pub(super) async fn fail_each_call<T>(
        &mut self,
        act: impl AsyncFn(&Catalog) -> Result<T, CatalogError>,
    ) -> T {
        let before = self.db.dump().await;
        let mut previous = String::new();
        for n in 1..CALLS_MAX {
            self.faults.rearm_at(n, Fault::Fail);
            let outcome = act(&self.catalog).await;
            let hit = self.faults.hit();
            // Some writes start with a read.
            let write = self.faults.last_write().map_or_else(|| "a read".into(), short);
            let after = self.db.dump().await;
            let place = format!("{write}, call {n}, {}", hit.unwrap_or("not reached"));
            match (outcome, hit) {
                (Ok(answer), None) => {
                    assert_ne!(after, before, "{write} changes nothing, so its failures prove nothing");
                    self.faults.rearm_at(0, Fault::Fail);
                    self.written.insert(write);
                    return answer;
                }
                // The claim is committed before this write, and its failure is ignored.
                (Ok(answer), Some(_)) if write == "fair::RaiseVirtualTime" => {
                    self.faults.rearm_at(0, Fault::Fail);
                    self.written.insert(previous);
                    return answer;
                }
                (Ok(_), Some(_)) => panic!("{place}: the failure was not reported"),
                (Err(CatalogError::Unknown(_)), Some("commit")) => {}
                (Err(CatalogError::Unavailable(_)), Some(call)) if call != "commit" => {}
                (Err(error), _) => panic!("{place}: {error}"),
            }
            assert_eq!(after, before, "{place}: partly written");
            previous = write;
        }
        panic!("the write did not succeed after {CALLS_MAX} calls");
    }

    /// The same for a read that records unreadable rows: it answers although that write fails.
    pub(super) async fn fail_each_call_of_list<T>(
        &mut self,
        act: impl AsyncFn(&Catalog) -> Result<T, CatalogError>,
    ) {
        for n in 1..CALLS_MAX {
            self.faults.rearm_at(n, Fault::Fail);
            let outcome = act(&self.catalog).await;
            let hit = self.faults.hit();
            let write = self.faults.last_write().map(short);
            if let (Ok(_), None, Some(write)) = (&outcome, hit, &write) {
                self.faults.rearm_at(0, Fault::Fail);
                self.written.insert(write.clone());
                return;
            }
            assert!(outcome.is_ok() || write.is_none(), "{write:?}, call {n}");
        }
        panic!("the read did not succeed after {CALLS_MAX} calls");
    }
}

/// The last two parts of a type's path: `jobs::Fail` of `wharfinger_catalog::jobs::Fail`.
pub(super) fn short(type_name: &str) -> String {
    let mut names: Vec<&str> = type_name.rsplit("::").take(2).collect();
    names.reverse();
    names.join("::")
}
