-- What a tenant holds for unconfirmed uploads is told by file_counts: a confirm need not wait for the quota's row.
ALTER TABLE quotas DROP COLUMN reserved_bytes;

-- Who lets uploads in: this row, or Redis in front of it. The epoch is raised whenever that may change, or what
-- Redis counts from: whoever was let in under another one was let in by somebody who is no longer asked.
ALTER TABLE quotas ADD COLUMN gate TEXT NOT NULL DEFAULT 'database' CHECK (gate IN ('database', 'redis'));
ALTER TABLE quotas ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE quotas ADD COLUMN gate_since BIGINT NOT NULL DEFAULT 0;

-- What must reach another system, written in the transaction that it follows from. A line for each destination,
-- gone when it has arrived.
CREATE TABLE outbox (
    id              TEXT {bytes} PRIMARY KEY,
    destination     TEXT {bytes} NOT NULL CHECK (destination IN ('quota', 'broker')),
    tenant_id       TEXT {bytes} NOT NULL,
    -- A refund: bytes, and the epoch they were charged under. A delayed check: its job, and when it is due.
    bytes           BIGINT,
    epoch           BIGINT,
    job_id          TEXT {bytes},
    due_at          BIGINT,
    attempts        BIGINT NOT NULL,
    last_error      TEXT,
    created_at      BIGINT NOT NULL,
    next_attempt_at BIGINT NOT NULL,
    CHECK (destination <> 'quota' OR (bytes IS NOT NULL AND epoch IS NOT NULL)),
    CHECK (destination <> 'broker' OR (job_id IS NOT NULL AND due_at IS NOT NULL))
);
CREATE INDEX outbox_due ON outbox (destination, next_attempt_at, id);
CREATE INDEX outbox_refunds ON outbox (tenant_id, epoch) WHERE destination = 'quota';
