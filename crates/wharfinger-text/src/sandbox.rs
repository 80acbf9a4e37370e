//! What the process that reads untrusted files takes from itself, before it reads: no file can be opened, made or
//! removed, no connection made, no process started or signalled. What it needs is open already.

use std::collections::BTreeMap;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetError, RulesetStatus, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde::{Deserialize, Serialize};

/// What the kernel enforces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// No access to files, networks and other processes.
    pub landlock: bool,
    /// Only calls that reading needs.
    pub seccomp: bool,
}

/// As much as this kernel can do, with something to be done in between. Either of the two also keeps the process from ever
/// gaining rights.
pub fn restrict_self<E>(between: impl FnOnce() -> Result<(), E>) -> Result<Sandbox, E> {
    let landlock = restrict_access().unwrap_or(false);
    between()?;
    Ok(Sandbox { landlock, seccomp: restrict_calls().unwrap_or(false) })
}

fn restrict_access() -> Result<bool, RulesetError> {
    let abi = ABI::V6;
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(restricted.ruleset != RulesetStatus::NotEnforced)
}

/// Memory, the files that are open, time, and an end. Every other call fails.
const ALLOWED: [i64; 33] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn restrict_calls() -> Result<bool, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // A crash ends the process by a signal to itself.
    let ourselves =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![ourselves])?]);
    // How long an open file is, by the calls that take a path too.
    for (call, flags_at) in [(libc::SYS_newfstatat, 3), (libc::SYS_statx, 2)] {
        let flags = libc::AT_EMPTY_PATH as u64;
        let of_open = SeccompCondition::new(flags_at, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, flags)?;
        rules.insert(call, vec![SeccompRule::new(vec![of_open])?]);
    }
    let arch = std::env::consts::ARCH.try_into()?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, denied, SeccompAction::Allow, arch)?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)?;
    Ok(true)
}
