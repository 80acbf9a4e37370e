//! The tables whose rows are leased, as data: the names of their columns, and what a claim and a release set.

use crate::unreadable::Table;

/// A table whose rows become due, are leased, and wait again if they were not finished.
#[derive(Clone, Copy)]
pub(crate) struct LeaseTable {
    pub(crate) table: Table,
    pub(crate) id: &'static str,
    /// The column with the queue of a row.
    pub(crate) queue: &'static str,
    /// The column with the time at which a row is due.
    pub(crate) due_at: &'static str,
    /// The condition of rows that get a rank when they are due. Sweeps have no ranks.
    pub(crate) scheduled: &'static str,
    /// The lock clause of a claim on PostgreSQL, and the join that it needs.
    pub(crate) lock: &'static str,
    pub(crate) join: &'static str,
    /// What a claim sets. `$2` is now, `$3` the end of the lease, `$4` the first value of the caller.
    pub(crate) claim: &'static str,
    /// The columns that a claim returns.
    pub(crate) claimed: &'static str,
    /// The condition of leased rows. Outbox lines have no token, so their leases cannot be extended or released by it.
    pub(crate) held: &'static str,
    /// The column with the latest possible end of a lease.
    pub(crate) deadline_at: Option<&'static str>,
    /// What a release sets.
    pub(crate) release: &'static str,
    /// What undoes the attempt of a row that was not worked on.
    pub(crate) undo_attempt: Option<&'static str>,
    /// What is also set in an unreadable row.
    pub(crate) unreadable: Option<&'static str>,
}

/// A job with an expired lease stays leased until it is ended as a failed attempt.
pub(crate) const JOBS: LeaseTable = LeaseTable {
    table: Table::Jobs,
    id: "id",
    queue: "queue",
    due_at: "run_at",
    scheduled: "state = 'waiting' AND rank IS NULL AND lost_leases = 0",
    lock: "FOR UPDATE SKIP LOCKED",
    join: "",
    claim: "state = 'leased', attempts = attempts + 1, lease_token = lease_token + 1, lease_until = $3, \
            updated_at = $2, lease_owner = $4, deadline_at = $5",
    claimed: "id, lease_token, queue, tenant_id, file_id, payload, attempts, max_attempts, lease_until, rank",
    held: "state = 'leased'",
    deadline_at: Some("deadline_at"),
    release: "state = 'waiting', rank = NULL, lease_owner = NULL, lease_until = NULL, deadline_at = NULL",
    undo_attempt: Some("attempts = attempts - 1"),
    unreadable: None,
};

/// The same rows, for claims that also change the file. A claim skips a job whose file is locked, so that it does not
/// wait for a file while it holds other jobs.
pub(crate) const STAGE_JOBS: LeaseTable = LeaseTable {
    lock: "FOR UPDATE OF jobs, files SKIP LOCKED",
    join: "JOIN files ON files.id = jobs.file_id",
    claim: "state = 'leased', attempts = attempts + 1, lease_token = lease_token + 1, lease_until = $3, \
            updated_at = $2, lease_owner = $4, deadline_at = $5, claim_id = $6, taking_in = 0, \
            file_version = (SELECT version + 1 FROM files WHERE files.id = jobs.file_id)",
    ..JOBS
};

/// A claim makes a line due again at a later time. A line that is not deleted by then is delivered again.
pub(crate) const OUTBOX: LeaseTable = LeaseTable {
    table: Table::Outbox,
    id: "id",
    queue: "destination",
    due_at: "next_attempt_at",
    scheduled: "rank IS NULL",
    lock: "FOR UPDATE SKIP LOCKED",
    join: "",
    claim: "next_attempt_at = $3",
    claimed: "id, tenant_id, bytes, epoch, job_id, due_at, notification_id, subject, place, message, attempts, \
              created_at, rank",
    held: "",
    deadline_at: None,
    release: "rank = NULL",
    undo_attempt: None,
    unreadable: None,
};

/// A row keeps its rank until its outcome is recorded. If the process dies, it is claimed again by that rank.
pub(crate) const CLEANUPS: LeaseTable = LeaseTable {
    table: Table::Cleanups,
    id: "id",
    queue: "storage_type",
    due_at: "next_attempt_at",
    scheduled: "rank IS NULL",
    lock: "FOR UPDATE SKIP LOCKED",
    join: "",
    claim: "lease_token = lease_token + 1, lease_until = $3, next_attempt_at = $3",
    claimed: "id, lease_token, file_path, tenant_id, reason, attempts, max_attempts, finish_at, in_parts, rank",
    held: "lease_until > 0",
    deadline_at: None,
    release: "rank = NULL, lease_until = 0",
    undo_attempt: None,
    // It is shown to operators with the exhausted ones.
    unreadable: Some("exhausted = 1"),
};

/// Each sweep is a queue of one row. A claim waits for running transactions of the previous lease.
pub(crate) const SWEEPS: LeaseTable = LeaseTable {
    table: Table::Sweeps,
    id: "name",
    queue: "name",
    due_at: "next_run_at",
    scheduled: "",
    lock: "FOR UPDATE",
    join: "",
    claim: "lease_token = lease_token + 1, lease_until = $3, lease_owner = $4",
    claimed: "lease_token",
    held: "lease_until > 0",
    deadline_at: None,
    release: "lease_until = 0",
    undo_attempt: None,
    unreadable: None,
};
