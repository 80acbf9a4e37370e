//! Fault injection for tests. Calls that leave the process go through [`Faults::around`], which counts them.
//! A plan says which call fails, and how. Without a plan it costs one comparison.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

/// How the chosen call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not made. Later calls work.
    Fail,
    /// The call is made, but its answer is lost. Later calls work.
    LoseAnswer,
    /// The process crashes before the call: this call and all later ones fail and are not made.
    CrashBefore,
    /// The process crashes after the call: it is made, its answer is lost, and later calls are not made.
    CrashAfter,
}

impl Fault {
    pub const ALL: [Fault; 4] = [Fault::Fail, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter];

    /// The faults that are worth a test at this call. The others have the same effect as a fault at another call.
    ///
    /// A read changes nothing, so a crash there equals a crash after the write before it. For the same reason a
    /// crash before a write equals a crash after the previous write.
    pub fn distinct_at(call: &'static str) -> &'static [Fault] {
        if changes_nothing(call) {
            &[Fault::Fail]
        } else {
            &[Fault::Fail, Fault::LoseAnswer, Fault::CrashAfter]
        }
    }
}

/// Statements of a transaction: they have an effect only if it commits.
fn is_inside_transaction(call: &str) -> bool {
    matches!(call, "statement" | "query")
}

/// Whether the call changes nothing outside the process. Calls that are not listed here get every distinct fault.
fn changes_nothing(call: &str) -> bool {
    let reads = [
        "connect",
        "begin",
        "rollback",
        "head",
        "get",
        "list",
        "list derived",
        "list parts",
        "sign put",
        "sign get",
    ];
    is_inside_transaction(call) || reads.contains(&call)
}

/// The error of a call that a plan made fail.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("injected fault at {call}")]
pub struct InjectedFault {
    pub call: &'static str,
}

/// Which calls a plan changes.
#[derive(Debug)]
enum Trigger {
    /// The call with this number, counted from 1. The number can be changed.
    Nth(AtomicU64),
    /// The same, but statements inside a transaction are not counted.
    NthIgnoringStatements(u64),
    /// Every n-th call with this name.
    EveryNth(&'static str, u64),
    /// No call fails, but the first n calls with this name wait until they are released.
    Block(&'static str, u32, Barrier),
}

#[derive(Debug)]
struct Barrier {
    reached: Notify,
    open: Semaphore,
}

#[derive(Debug)]
struct Plan {
    calls: AtomicU64,
    trigger: Trigger,
    outcome: Mutex<Outcome>,
    has_crashed: AtomicBool,
    is_paused: AtomicBool,
    /// The text of every statement that was sent.
    statements: Mutex<BTreeSet<String>>,
    /// The number of steps that SQLite took. None: they are not counted.
    steps: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
struct Outcome {
    fault: Fault,
    /// The first call that failed because of the plan.
    hit: Option<&'static str>,
    /// The type of the last catalog write that started.
    write: Option<&'static str>,
}

impl Plan {
    /// Counts the call if the trigger counts such calls.
    fn is_hit(&self, call: &'static str) -> bool {
        let count = || self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        match &self.trigger {
            Trigger::Nth(at) => count() == at.load(Ordering::SeqCst),
            Trigger::NthIgnoringStatements(at) => !is_inside_transaction(call) && count() == *at,
            Trigger::EveryNth(name, nth) => *name == call && count() % nth == 0,
            Trigger::Block(..) => false,
        }
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait(&self, call: &'static str) {
        let Trigger::Block(name, first, barrier) = &self.trigger else { return };
        let nth = if *name == call { self.calls.fetch_add(1, Ordering::SeqCst) + 1 } else { u64::MAX };
        if nth == u64::from(*first) {
            barrier.reached.notify_one();
        }
        if nth <= u64::from(*first)
            && let Ok(open) = barrier.open.acquire().await
        {
            open.forget();
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<Plan>>);

impl Faults {
    pub fn none() -> Faults {
        Faults(None)
    }

    /// Call number `at`, counted from 1, fails.
    pub fn at(at: u64, fault: Fault) -> Faults {
        Faults::planned(Trigger::Nth(AtomicU64::new(at)), fault)
    }

    /// For a plan created by [`Faults::at`]: counts from 1 again, fails at this call, and ends an injected crash.
    pub fn rearm_at(&self, at: u64, fault: Fault) {
        let Some(plan) = &self.0 else { return };
        if let Trigger::Nth(planned) = &plan.trigger {
            planned.store(at, Ordering::SeqCst);
        }
        *plan.outcome() = Outcome { fault, hit: None, write: None };
        plan.calls.store(0, Ordering::SeqCst);
        plan.has_crashed.store(false, Ordering::SeqCst);
    }

    /// Like [`Faults::at`], but statements inside a transaction are not counted: the catalog's conformance suite
    /// tests faults at those.
    pub fn at_ignoring_statements(at: u64, fault: Fault) -> Faults {
        Faults::planned(Trigger::NthIgnoringStatements(at), fault)
    }

    /// Every `nth` call with this name fails.
    pub fn every_nth(call: &'static str, nth: u64) -> Faults {
        Faults::planned(Trigger::EveryNth(call, nth), Fault::Fail)
    }

    /// Nothing fails, but the first call with this name waits until [`Faults::release`].
    pub fn block_at(call: &'static str) -> Faults {
        Faults::block_first_at(call, 1)
    }

    /// The first `first` calls with this name wait until [`Faults::release`].
    pub fn block_first_at(call: &'static str, first: u32) -> Faults {
        let barrier = Barrier { reached: Notify::new(), open: Semaphore::new(0) };
        Faults::planned(Trigger::Block(call, first, barrier), Fault::Fail)
    }

    /// Returns when all calls that are to be blocked have arrived.
    pub async fn reached(&self) {
        if let Some(Trigger::Block(_, _, barrier)) = self.0.as_ref().map(|plan| &plan.trigger) {
            barrier.reached.notified().await;
        }
    }

    pub fn release(&self) {
        if let Some(Trigger::Block(_, first, barrier)) = self.0.as_ref().map(|plan| &plan.trigger) {
            barrier.open.add_permits(*first as usize);
        }
    }

    fn planned(trigger: Trigger, fault: Fault) -> Faults {
        Faults::with_steps(trigger, fault, None)
    }

    fn with_steps(trigger: Trigger, fault: Fault, steps: Option<Arc<AtomicU64>>) -> Faults {
        Faults(Some(Arc::new(Plan {
            calls: AtomicU64::new(0),
            trigger,
            outcome: Mutex::new(Outcome { fault, hit: None, write: None }),
            has_crashed: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            statements: Mutex::default(),
            steps,
        })))
    }

    /// Counts calls; none fails.
    pub fn counting() -> Faults {
        Faults::at(u64::MAX, Fault::Fail)
    }

    /// Nothing fails. The steps of SQLite's virtual machine are counted approximately.
    pub fn counting_steps() -> Faults {
        Faults::with_steps(Trigger::Nth(AtomicU64::new(u64::MAX)), Fault::Fail, Some(Arc::default()))
    }

    pub fn steps(&self) -> u64 {
        self.step_counter().map_or(0, |steps| steps.load(Ordering::SeqCst))
    }

    pub fn step_counter(&self) -> Option<&Arc<AtomicU64>> {
        self.0.as_ref().and_then(|plan| plan.steps.as_ref())
    }

    /// Whether there is no plan.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// While paused, calls are neither counted nor made to fail.
    pub fn pause(&self, is_paused: bool) {
        if let Some(plan) = &self.0 {
            plan.is_paused.store(is_paused, Ordering::SeqCst);
        }
    }

    /// The first call that failed because of the plan.
    pub fn hit(&self) -> Option<&'static str> {
        self.0.as_ref().and_then(|plan| plan.outcome().hit)
    }

    /// The catalog calls it with the type of each write that starts.
    pub fn write_started<W>(&self) {
        if let Some(plan) = &self.0 {
            plan.outcome().write = Some(std::any::type_name::<W>());
        }
    }

    /// The type of the last write of the catalog that started.
    pub fn last_write(&self) -> Option<&'static str> {
        self.0.as_ref().and_then(|plan| plan.outcome().write)
    }

    /// Remembers a statement for tests that check its query plan.
    pub fn record_statement(&self, statement: impl FnOnce() -> String) {
        if let Some(plan) = &self.0 {
            plan.statements.lock().unwrap_or_else(PoisonError::into_inner).insert(statement());
        }
    }

    /// The distinct statements that were sent.
    pub fn statements(&self) -> Vec<String> {
        let Some(plan) = &self.0 else { return Vec::new() };
        plan.statements.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub fn calls(&self) -> u64 {
        self.0.as_ref().map_or(0, |plan| plan.calls.load(Ordering::SeqCst))
    }

    pub async fn around<T, E: From<InjectedFault>>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(plan) = self.0.as_ref().filter(|plan| !plan.is_paused.load(Ordering::SeqCst)) else {
            return work.await;
        };
        let hit = Err(E::from(InjectedFault { call }));
        if plan.has_crashed.load(Ordering::SeqCst) {
            return hit;
        }
        plan.wait(call).await;
        if !plan.is_hit(call) {
            return work.await;
        }
        let fault = {
            let mut outcome = plan.outcome();
            outcome.hit.get_or_insert(call);
            outcome.fault
        };
        match fault {
            Fault::Fail => hit,
            Fault::LoseAnswer => {
                let _ = work.await;
                hit
            }
            Fault::CrashBefore => {
                plan.has_crashed.store(true, Ordering::SeqCst);
                hit
            }
            Fault::CrashAfter => {
                plan.has_crashed.store(true, Ordering::SeqCst);
                let _ = work.await;
                hit
            }
        }
    }
}
