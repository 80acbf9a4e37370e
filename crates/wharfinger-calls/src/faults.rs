//! Faults at exact places. Every call that leaves the process passes through [`Faults::around`], which counts
//! it; a plan says at which call what goes wrong. Without a plan it costs one comparison.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

/// What goes wrong at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not made; the next ones work.
    Fail,
    /// The call is made, its answer is lost; the next ones work.
    LoseAnswer,
    /// The process dies before the call: this one and all later ones are not made.
    CrashBefore,
    /// The process dies after the call: it is made, no later one is.
    CrashAfter,
}

impl Fault {
    pub const ALL: [Fault; 4] = [Fault::Fail, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter];

    /// The faults at this call that no fault at another call stands for.
    ///
    /// A call that leaves nothing behind can only fail: a crash there leaves what a crash after the last lasting call
    /// leaves. A crash before a lasting call is a crash after the one before it.
    pub fn distinct_at(call: &'static str) -> &'static [Fault] {
        if leaves_nothing(call) {
            &[Fault::Fail]
        } else {
            &[Fault::Fail, Fault::LoseAnswer, Fault::CrashAfter]
        }
    }
}

/// Statements of a transaction that its commit decides about.
fn is_inside_transaction(call: &str) -> bool {
    matches!(call, "statement" | "query")
}

/// Whether the world is the same before and after the call. Calls that are not listed get every fault.
fn leaves_nothing(call: &str) -> bool {
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

/// What a call answers that was hit.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("injected fault at {call}")]
pub struct Injected {
    pub call: &'static str,
}

/// Which calls go wrong.
#[derive(Debug)]
enum Trigger {
    /// The one with this number, counted from 1. It can be changed.
    Nth(AtomicU64),
    /// The same, where statements inside a transaction are not counted.
    NthBorder(u64),
    /// Of the calls of one name each whose number this divides.
    Each(&'static str, u64),
    /// None; but the first so many of this name wait to be let on.
    Waits(&'static str, u32, Barrier),
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
    aim: Mutex<Outcome>,
    dead: AtomicBool,
    held: AtomicBool,
    /// Every statement that was sent, by its text.
    statements: Mutex<BTreeSet<String>>,
    /// How many steps SQLite took, where that is counted.
    steps: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
struct Outcome {
    fault: Fault,
    /// The first call that went wrong.
    hit: Option<&'static str>,
    /// The last write that started.
    write: Option<&'static str>,
}

impl Plan {
    /// Counts a call, if it is one that counts.
    fn is_hit(&self, call: &'static str) -> bool {
        let count = || self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        match &self.trigger {
            Trigger::Nth(at) => count() == at.load(Ordering::SeqCst),
            Trigger::NthBorder(at) => !is_inside_transaction(call) && count() == *at,
            Trigger::Each(name, nth) => *name == call && count() % nth == 0,
            Trigger::Waits(..) => false,
        }
    }

    fn aim(&self) -> MutexGuard<'_, Outcome> {
        self.aim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait(&self, call: &'static str) {
        let Trigger::Waits(name, first, barrier) = &self.trigger else { return };
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

    /// Goes wrong at call number `at`, counted from 1.
    pub fn at(at: u64, fault: Fault) -> Faults {
        Faults::planned(Trigger::Nth(AtomicU64::new(at)), fault)
    }

    /// For a plan made by [`Faults::at`]: counts from 1 again, and goes wrong at this call. A process that died lives
    /// again.
    pub fn aim_at(&self, at: u64, fault: Fault) {
        let Some(plan) = &self.0 else { return };
        if let Trigger::Nth(planned) = &plan.trigger {
            planned.store(at, Ordering::SeqCst);
        }
        *plan.aim() = Outcome { fault, hit: None, write: None };
        plan.calls.store(0, Ordering::SeqCst);
        plan.dead.store(false, Ordering::SeqCst);
    }

    /// The same, where statements inside a transaction are not counted: the conformance suite hits each of those.
    pub fn at_border(at: u64, fault: Fault) -> Faults {
        Faults::planned(Trigger::NthBorder(at), fault)
    }

    /// Of the calls of this name every `nth` fails, for ever.
    pub fn each(call: &'static str, nth: u64) -> Faults {
        Faults::planned(Trigger::Each(call, nth), Fault::Fail)
    }

    /// Nothing fails, but the first call of this name is not made before it is let on.
    pub fn waiting_at(call: &'static str) -> Faults {
        Faults::all_waiting_at(call, 1)
    }

    /// The same of the first so many calls of this name.
    pub fn all_waiting_at(call: &'static str, first: u32) -> Faults {
        let barrier = Barrier { reached: Notify::new(), open: Semaphore::new(0) };
        Faults::planned(Trigger::Waits(call, first, barrier), Fault::Fail)
    }

    /// All calls that wait have come; at once if they came before.
    pub async fn reached(&self) {
        if let Some(Trigger::Waits(_, _, barrier)) = self.0.as_ref().map(|plan| &plan.trigger) {
            barrier.reached.notified().await;
        }
    }

    pub fn let_on(&self) {
        if let Some(Trigger::Waits(_, first, barrier)) = self.0.as_ref().map(|plan| &plan.trigger) {
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
            aim: Mutex::new(Outcome { fault, hit: None, write: None }),
            dead: AtomicBool::new(false),
            held: AtomicBool::new(false),
            statements: Mutex::default(),
            steps,
        })))
    }

    /// Only counts.
    pub fn counting() -> Faults {
        Faults::at(u64::MAX, Fault::Fail)
    }

    /// Nothing fails; the steps of SQLite's virtual machine are counted, about.
    pub fn counting_steps() -> Faults {
        Faults::with_steps(Trigger::Nth(AtomicU64::new(u64::MAX)), Fault::Fail, Some(Arc::default()))
    }

    pub fn steps(&self) -> u64 {
        self.step_counter().map_or(0, |steps| steps.load(Ordering::SeqCst))
    }

    pub fn step_counter(&self) -> Option<&Arc<AtomicU64>> {
        self.0.as_ref().and_then(|plan| plan.steps.as_ref())
    }

    /// Whether anything can go wrong at all.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// While held, calls are neither counted nor hit.
    pub fn hold(&self, held: bool) {
        if let Some(plan) = &self.0 {
            plan.held.store(held, Ordering::SeqCst);
        }
    }

    /// The first call that went wrong.
    pub fn hit(&self) -> Option<&'static str> {
        self.0.as_ref().and_then(|plan| plan.aim().hit)
    }

    /// Called with the type of each write of the catalog when it begins.
    pub fn begins<W>(&self) {
        if let Some(plan) = &self.0 {
            plan.aim().write = Some(std::any::type_name::<W>());
        }
    }

    /// The type of the last write of the catalog that started.
    pub fn last_write(&self) -> Option<&'static str> {
        self.0.as_ref().and_then(|plan| plan.aim().write)
    }

    /// Remembers a statement, for those who look at how it is carried out.
    pub fn sends(&self, statement: impl FnOnce() -> String) {
        if let Some(plan) = &self.0 {
            plan.statements.lock().unwrap_or_else(PoisonError::into_inner).insert(statement());
        }
    }

    /// All statements that were sent, each once.
    pub fn statements(&self) -> Vec<String> {
        let Some(plan) = &self.0 else { return Vec::new() };
        plan.statements.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub fn calls(&self) -> u64 {
        self.0.as_ref().map_or(0, |plan| plan.calls.load(Ordering::SeqCst))
    }

    pub async fn around<T, E: From<Injected>>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(plan) = self.0.as_ref().filter(|plan| !plan.held.load(Ordering::SeqCst)) else {
            return work.await;
        };
        let hit = Err(E::from(Injected { call }));
        if plan.dead.load(Ordering::SeqCst) {
            return hit;
        }
        plan.wait(call).await;
        if !plan.is_hit(call) {
            return work.await;
        }
        let fault = {
            let mut aim = plan.aim();
            aim.hit.get_or_insert(call);
            aim.fault
        };
        match fault {
            Fault::Fail => hit,
            Fault::LoseAnswer => {
                let _ = work.await;
                hit
            }
            Fault::CrashBefore => {
                plan.dead.store(true, Ordering::SeqCst);
                hit
            }
            Fault::CrashAfter => {
                plan.dead.store(true, Ordering::SeqCst);
                let _ = work.await;
                hit
            }
        }
    }
}
