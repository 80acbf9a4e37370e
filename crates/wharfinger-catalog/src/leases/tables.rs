//! The four tables whose rows are leased, as data: what they call their columns, and what a claim and its end set.

use crate::unreadable::Table;

/// A table whose rows become due, are claimed under a lease, and wait again if they were not finished.
#[derive(Clone, Copy)]
pub(crate) struct LeaseTable {
    pub(crate) table: Table,
    pub(crate) id: &'static str,
    /// The column that names the queue of a row.
    pub(crate) queue: &'static str,
    /// The column that says when a row is due.
    pub(crate) due_at: &'static str,
    /// Rows that get a rank when they are due. Sweeps have none.
    pub(crate) scheduled: &'static str,
    /// How PostgreSQL locks what is claimed, and what it joins for that.
    pub(crate) lock: &'static str,
    pub(crate) join: &'static str,
    /// What a claim sets: `$2` is now, `$3` the end of the lease. Values from `$4` on are the claim's own.
    pub(crate) claim: &'static str,
    /// What a claim answers.
    pub(crate) claimed: &'static str,
    /// Rows under a lease that its holder can extend or give up. Lines of the outbox have no token to do so.
    pub(crate) held: &'static str,
    /// The column with the latest end that a lease can be extended to.
    pub(crate) deadline_at: Option<&'static str>,
    /// What ends a lease whose row waits again.
    pub(crate) release: &'static str,
    /// What gives a row that nobody worked on its attempt back.
    pub(crate) uncount: Option<&'static str>,
    /// What else is set in a row that cannot be read.
    pub(crate) unreadable: Option<&'static str>,
}

/// A lease that ran out is an attempt of the job: it stays leased until it is taken back.
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
    uncount: Some("attempts = attempts - 1"),
    unreadable: None,
};

/// The same rows where a claim sets their files to work: a job is passed over while another transaction changes its
/// file, so that no claim waits with jobs in hand.
pub(crate) const STAGE_JOBS: LeaseTable = LeaseTable {
    lock: "FOR UPDATE OF jobs, files SKIP LOCKED",
    join: "JOIN files ON files.id = jobs.file_id",
    claim: "state = 'leased', attempts = attempts + 1, lease_token = lease_token + 1, lease_until = $3, \
            updated_at = $2, lease_owner = $4, deadline_at = $5, claim_id = $6, taking_in = 0, \
            file_version = (SELECT version + 1 FROM files WHERE files.id = jobs.file_id)",
    ..JOBS
};

/// A line has no lease of its own: while it is delivered it is not due, so one that is not removed comes again.
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
    uncount: None,
    unreadable: None,
};

/// A row keeps its rank until it is settled: if its process dies, it is claimed again in its turn.
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
    uncount: None,
    // Operators see it among the exhausted ones.
    unreadable: Some("exhausted = 1"),
};

/// Each sweep is a queue of one row. A claim waits for the commit that is under way under the lease before.
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
    uncount: None,
    unreadable: None,
};
