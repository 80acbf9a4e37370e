-- Lines for the archive, each with its event in `message`. What a process that is still at work has not committed yet must
-- not be dropped with the table.
{outbox alone}
CREATE TABLE outbox_to_archive (
    id              TEXT {bytes} PRIMARY KEY,
    destination     TEXT {bytes} NOT NULL
        CHECK (destination IN ('quota', 'broker', 'webhook', 'slack', 'archive')),
    tenant_id       TEXT {bytes} NOT NULL,
    bytes           BIGINT,
    epoch           BIGINT,
    job_id          TEXT {bytes},
    due_at          BIGINT,
    notification_id TEXT {bytes},
    subject         TEXT {bytes},
    place           BIGINT,
    message         TEXT,
    attempts        BIGINT NOT NULL,
    last_error      TEXT,
    created_at      BIGINT NOT NULL,
    next_attempt_at BIGINT NOT NULL,
    CHECK (destination <> 'quota' OR (bytes IS NOT NULL AND epoch IS NOT NULL)),
    CHECK (destination <> 'broker' OR (job_id IS NOT NULL AND due_at IS NOT NULL)),
    CHECK (destination <> 'webhook' OR (notification_id IS NOT NULL AND subject IS NOT NULL AND place IS NOT NULL)),
    CHECK (destination NOT IN ('slack', 'archive') OR message IS NOT NULL)
);
INSERT INTO outbox_to_archive (id, destination, tenant_id, bytes, epoch, job_id, due_at, notification_id, subject, place,
    message, attempts, last_error, created_at, next_attempt_at)
    SELECT id, destination, tenant_id, bytes, epoch, job_id, due_at, notification_id, subject, place, message, attempts,
    last_error, created_at, next_attempt_at
    FROM outbox;
DROP TABLE outbox;
ALTER TABLE outbox_to_archive RENAME TO outbox;
CREATE INDEX outbox_due ON outbox (destination, next_attempt_at, id);
CREATE INDEX outbox_refunds ON outbox (tenant_id, epoch) WHERE destination = 'quota';
CREATE INDEX outbox_in_order ON outbox (destination, subject, place) WHERE subject IS NOT NULL;
