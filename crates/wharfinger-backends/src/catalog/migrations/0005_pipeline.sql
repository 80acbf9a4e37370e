-- The stages a file goes through, copied to it when it is confirmed, and the one that works on it or is next.
ALTER TABLE files ADD COLUMN stages TEXT NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN stage TEXT;
CREATE INDEX files_by_batch ON files (batch_id, id) WHERE batch_id IS NOT NULL;
-- Each healer looks at its own statuses: a long queue does not stand in the way of overdue uploads.
DROP INDEX files_to_look_at;
CREATE INDEX files_to_look_at ON files (pipeline_status, next_look_at, id) WHERE next_look_at IS NOT NULL;

-- The version that a claim left its file at, and how many workers in a row did not come back from the job.
ALTER TABLE jobs ADD COLUMN file_version BIGINT;
ALTER TABLE jobs ADD COLUMN lost_leases BIGINT NOT NULL DEFAULT 0;
-- Since when something that all files need has been away, and whether its output is being taken in just now.
ALTER TABLE jobs ADD COLUMN put_off_since BIGINT;
ALTER TABLE jobs ADD COLUMN taking_in BIGINT NOT NULL DEFAULT 0;

-- Which attempt made a derived object: what others made is superseded when it ends well.
ALTER TABLE objects ADD COLUMN made_by TEXT {bytes};

-- What a stage that ended well has left, as a JSON object.
CREATE TABLE stage_outputs (
    file_id TEXT {bytes} NOT NULL,
    stage   TEXT NOT NULL,
    done_at BIGINT NOT NULL,
    output  TEXT NOT NULL,
    PRIMARY KEY (file_id, stage)
);

-- The text of a file, in parts that are small enough to be held in memory.
CREATE TABLE text_parts (
    file_id        TEXT {bytes} NOT NULL,
    part           BIGINT NOT NULL,
    key            TEXT {bytes} NOT NULL,
    etag           TEXT NOT NULL,
    object_version TEXT,
    bytes          BIGINT NOT NULL,
    PRIMARY KEY (file_id, part)
);

-- Offsets are in characters of the whole text; a vector is 32-bit floats, little-endian.
CREATE TABLE chunks (
    file_id    TEXT {bytes} NOT NULL,
    ordinal    BIGINT NOT NULL,
    text       TEXT NOT NULL,
    start_char BIGINT NOT NULL,
    end_char   BIGINT NOT NULL,
    vector     {blob},
    PRIMARY KEY (file_id, ordinal)
);

CREATE TABLE upload_batches (
    id         TEXT {bytes} PRIMARY KEY,
    tenant_id  TEXT {bytes} NOT NULL,
    user_id    TEXT {bytes} NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('active', 'completed', 'expired', 'cancelled')),
    version    BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at   BIGINT,
    CHECK ((ended_at IS NULL) = (status = 'active'))
);
CREATE INDEX upload_batches_active ON upload_batches (expires_at, id) WHERE status = 'active';
CREATE INDEX upload_batches_by_owner ON upload_batches (tenant_id, user_id, status);

-- Notices go to other systems too: in order for each subject (a file, a batch), which is what `place` counts.
CREATE TABLE outbox_of_all (
    id              TEXT {bytes} PRIMARY KEY,
    destination     TEXT {bytes} NOT NULL CHECK (destination IN ('quota', 'broker', 'webhook', 'slack')),
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
    CHECK (destination <> 'slack' OR message IS NOT NULL)
);
INSERT INTO outbox_of_all (id, destination, tenant_id, bytes, epoch, job_id, due_at, attempts, last_error, created_at,
    next_attempt_at)
    SELECT id, destination, tenant_id, bytes, epoch, job_id, due_at, attempts, last_error, created_at, next_attempt_at
    FROM outbox;
DROP TABLE outbox;
ALTER TABLE outbox_of_all RENAME TO outbox;
CREATE INDEX outbox_due ON outbox (destination, next_attempt_at, id);
CREATE INDEX outbox_refunds ON outbox (tenant_id, epoch) WHERE destination = 'quota';
CREATE INDEX outbox_in_order ON outbox (destination, subject, place) WHERE subject IS NOT NULL;
