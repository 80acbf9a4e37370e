//! The sandbox of the process that reads untrusted files. The process has its files open already. It can no longer
//! open, create or remove a file, connect, start a process or send a signal
//! (`the_sandbox_blocks_files_network_and_processes`).

use std::collections::BTreeMap;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetError, RulesetStatus, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde::{Deserialize, Serialize};

/// The restrictions that the kernel enforces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// No access to files, networks and other processes.
    pub landlock: bool,
    /// Only the system calls that reading needs.
    pub seccomp: bool,
}

/// Applies as much as this kernel supports, and calls `between` after Landlock and before seccomp. Both also set
/// `no_new_privs`, so the process cannot gain privileges.
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

/// Calls for memory, open files, time and exit. Every other call fails.
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
    // A crash sends a signal to the process itself.
    let to_this_process =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![to_this_process])?]);
    // The length of an open file. These calls also accept a path, so only AT_EMPTY_PATH is allowed.
    for (call, flags_at) in [(libc::SYS_newfstatat, 3), (libc::SYS_statx, 2)] {
        let flags = libc::AT_EMPTY_PATH as u64;
        let of_open_file = SeccompCondition::new(flags_at, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, flags)?;
        rules.insert(call, vec![SeccompRule::new(vec![of_open_file])?]);
    }
    let arch = std::env::consts::ARCH.try_into()?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, denied, SeccompAction::Allow, arch)?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)?;
    Ok(true)
}
