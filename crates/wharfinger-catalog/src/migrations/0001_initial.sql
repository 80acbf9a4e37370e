-- One text for SQLite and PostgreSQL. {bytes} is the collation that sorts by bytes; times are milliseconds
-- since 1970 UTC; ids are UUIDv7 in their canonical spelling, so that they sort by time.
-- Indexes are in indexes.sql.

CREATE TABLE files (
    id              TEXT {bytes} PRIMARY KEY,
    tenant_id       TEXT {bytes} NOT NULL,
    user_id         TEXT {bytes} NOT NULL,
    batch_id        TEXT {bytes},
    file_name       TEXT NOT NULL,
    size            BIGINT NOT NULL CHECK (size >= 0),
    content_type    TEXT,
    checksum_sha256 TEXT,
    metadata        TEXT,
    blob_path       TEXT {bytes} NOT NULL,
    -- Large files are uploaded in parts of this size; NULL: in one piece.
    part_size       BIGINT,
    pipeline_status TEXT NOT NULL CHECK (pipeline_status IN (
        'registered', 'uploaded', 'queued', 'scanning', 'extracting', 'chunking', 'embedding',
        'ready', 'failed', 'quarantined', 'deleted')),
    -- The stages of the file, and the current or next one. NULL before the confirm: its uploader chose none, so the
    -- confirm takes the configured ones.
    stages          TEXT,
    stage           TEXT,
    -- none, extracted; NULL until the extract stage has finished.
    text_status     TEXT,
    version         BIGINT NOT NULL,
    charged_bytes   BIGINT NOT NULL CHECK (charged_bytes >= 0),
    retry_count     BIGINT NOT NULL,
    error           TEXT,
    etag            TEXT,
    object_version  TEXT,
    end_reason      TEXT,
    url_dead_at     BIGINT NOT NULL,
    next_check_at   BIGINT,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    confirmed_at    BIGINT,
    ready_at        BIGINT,
    -- Why a quarantined file is quarantined: its scan found something, or its object was changed after the confirm.
    quarantine      TEXT CHECK (quarantine IN ('infected', 'changed')),
    -- When it failed or was quarantined.
    failed_at       BIGINT,
    -- When the owner was warned that the failed or quarantined file will be deleted.
    warned_at       BIGINT,
    -- Every file that is not final has a next check.
    CHECK (next_check_at IS NOT NULL OR pipeline_status IN ('ready', 'quarantined')),
    -- Only an unconfirmed or a deleted file may be without a pin.
    CHECK (etag IS NOT NULL OR pipeline_status IN ('registered', 'deleted')),
    CHECK ((end_reason IS NOT NULL) = (pipeline_status = 'deleted')),
    CHECK ((quarantine IS NOT NULL) = (pipeline_status = 'quarantined'))
);

-- Uploaded originals and what stages derive from them. The row is written before the object can exist. The marker and
-- stored events have no row.
CREATE TABLE objects (
    key        TEXT {bytes} PRIMARY KEY,
    file_id    TEXT {bytes} NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('original', 'derived')),
    upload_id  TEXT,
    -- The attempt that made a derived object.
    made_by    TEXT {bytes},
    created_at BIGINT NOT NULL
);

CREATE TABLE file_history (
    file_id     TEXT {bytes} NOT NULL,
    version     BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    from_status TEXT,
    to_status   TEXT NOT NULL,
    reason      TEXT NOT NULL,
    actor       TEXT NOT NULL,
    PRIMARY KEY (file_id, version)
);

-- Number and charge of a user's files by status, updated in the transaction that changes the files. Queued files
-- are counted by the stage they wait for, failed ones by the stage of their dead letter. `changes` is raised with
-- every update of the row.
CREATE TABLE file_counts (
    tenant_id     TEXT {bytes} NOT NULL,
    user_id       TEXT {bytes} NOT NULL,
    status        TEXT {bytes} NOT NULL,
    stage         TEXT {bytes} NOT NULL,
    files         BIGINT NOT NULL,
    charged_bytes BIGINT NOT NULL,
    changes       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, user_id, status, stage)
);

-- How many of a user's files ended in which way, by quarter of an hour. Only the last days are kept.
CREATE TABLE file_outcomes (
    tenant_id TEXT {bytes} NOT NULL,
    user_id   TEXT {bytes} NOT NULL,
    at        BIGINT NOT NULL,
    outcome   TEXT {bytes} NOT NULL CHECK (outcome IN ('ready', 'failed', 'quarantined')),
    files     BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, user_id, at, outcome)
);

-- A tenant's limit (NULL: the default), its charge, and who admits uploads: this row, or Redis in front of it. The
-- epoch is raised when the admitting side, or the base that Redis counts from, changes.
CREATE TABLE quotas (
    tenant_id   TEXT {bytes} PRIMARY KEY,
    limit_bytes BIGINT,
    used_bytes  BIGINT NOT NULL CHECK (used_bytes >= 0),
    owner       TEXT NOT NULL DEFAULT 'database' CHECK (owner IN ('database', 'redis')),
    epoch       BIGINT NOT NULL DEFAULT 0,
    owner_since BIGINT NOT NULL DEFAULT 0
);

-- What an operator allows a tenant. NULL: the default of the settings. The types are separated by commas.
CREATE TABLE tenant_policies (
    tenant_id           TEXT {bytes} PRIMARY KEY,
    allowed_types       TEXT CHECK (allowed_types <> ''),
    file_size_bytes_max BIGINT CHECK (file_size_bytes_max > 0),
    requests_per_second BIGINT CHECK (requests_per_second >= 0),
    updated_at          BIGINT NOT NULL
);

CREATE TABLE jobs (
    id            TEXT {bytes} PRIMARY KEY,
    queue         TEXT {bytes} NOT NULL,
    tenant_id     TEXT {bytes} NOT NULL,
    file_id       TEXT {bytes},
    payload       TEXT,
    state         TEXT NOT NULL CHECK (state IN ('waiting', 'leased', 'dead')),
    run_at        BIGINT NOT NULL,
    -- Of a waiting job: NULL while it is scheduled (ordered by run_at), a number once it is due (ordered by rank).
    rank          BIGINT,
    attempts      BIGINT NOT NULL,
    max_attempts  BIGINT NOT NULL,
    -- Raised at every claim; a holder of an older token has lost the job.
    lease_token   BIGINT NOT NULL,
    lease_owner   TEXT,
    -- The claim that took the lease: one whose answer was lost can be given back.
    claim_id      TEXT {bytes},
    lease_until   BIGINT,
    deadline_at   BIGINT,
    -- The file's version after the claim.
    file_version  BIGINT,
    -- How many workers in a row were lost with this job.
    lost_leases   BIGINT NOT NULL DEFAULT 0,
    -- Since when a backend that the stage needs has been away.
    put_off_since BIGINT,
    -- How often it was redriven since a stage last ended well.
    redrives      BIGINT NOT NULL DEFAULT 0,
    -- 1 while the output of an outside worker is being stored.
    taking_in     BIGINT NOT NULL DEFAULT 0,
    last_error    TEXT,
    dead_reason   TEXT,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    CHECK (state <> 'leased' OR (lease_until IS NOT NULL AND deadline_at IS NOT NULL))
);

-- When a worker last asked for jobs of each stage.
CREATE TABLE stage_workers (
    stage   TEXT {bytes} PRIMARY KEY,
    seen_at BIGINT NOT NULL
);

-- The last rank of each tenant in each queue with a fair order, and in the row of the tenant '' the virtual time.
CREATE TABLE queue_tenants (
    queue     TEXT {bytes} NOT NULL,
    tenant_id TEXT {bytes} NOT NULL,
    last_rank BIGINT NOT NULL,
    PRIMARY KEY (queue, tenant_id)
);

-- The output of a finished stage, as a JSON object.
CREATE TABLE stage_outputs (
    file_id TEXT {bytes} NOT NULL,
    stage   TEXT NOT NULL,
    done_at BIGINT NOT NULL,
    output  TEXT NOT NULL,
    PRIMARY KEY (file_id, stage)
);

-- The text of a file, in parts that fit into memory.
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
    -- The model that made the vector.
    model      TEXT,
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

-- Objects to delete: of ended files, by the transaction that ends them; of stages, by the one that drops them; orphans, by
-- the scan that finds them.
CREATE TABLE pending_cleanups (
    id              TEXT {bytes} PRIMARY KEY,
    file_path       TEXT {bytes} NOT NULL,
    storage_type    TEXT NOT NULL,
    reason          TEXT NOT NULL,
    -- The sweep, check, worker or caller that ordered the delete. NULL: bytes that came after the end of their file.
    ordered_by      TEXT,
    tenant_id       TEXT {bytes} NOT NULL,
    document_id     TEXT {bytes} NOT NULL,
    size            BIGINT NOT NULL,
    -- 1: an unfinished multipart upload is to be aborted too.
    in_parts        BIGINT NOT NULL DEFAULT 0,
    attempts        BIGINT NOT NULL,
    max_attempts    BIGINT NOT NULL,
    last_error      TEXT,
    created_at      BIGINT NOT NULL,
    last_attempt_at BIGINT,
    next_attempt_at BIGINT NOT NULL,
    -- The object is deleted once more at this time: until then a URL may bring it back.
    finish_at       BIGINT NOT NULL,
    -- NULL while it is scheduled (next_attempt_at); once it is due, its place in the fair order.
    rank            BIGINT,
    exhausted       BIGINT NOT NULL,
    lease_token     BIGINT NOT NULL,
    lease_until     BIGINT NOT NULL
);

-- Objects that were deleted: a row of pending_cleanups moves here when its object is gone. What stages made of a file
-- is one row, whose key is their folder.
CREATE TABLE deletion_log (
    id         TEXT {bytes} PRIMARY KEY,
    key        TEXT {bytes} NOT NULL,
    objects    BIGINT NOT NULL,
    size       BIGINT NOT NULL,
    reason     TEXT NOT NULL,
    ordered_by TEXT,
    tenant_id  TEXT {bytes} NOT NULL,
    file_id    TEXT {bytes} NOT NULL,
    deleted_at BIGINT NOT NULL
);

-- What operators and admins did.
CREATE TABLE audit_log (
    id        TEXT {bytes} PRIMARY KEY,
    at        BIGINT NOT NULL,
    actor     TEXT NOT NULL,
    action    TEXT NOT NULL,
    tenant_id TEXT {bytes},
    subject   TEXT NOT NULL,
    -- A JSON object.
    detail    TEXT NOT NULL
);

CREATE TABLE notifications (
    id         TEXT {bytes} PRIMARY KEY,
    tenant_id  TEXT {bytes} NOT NULL,
    user_id    TEXT {bytes} NOT NULL,
    kind       TEXT NOT NULL,
    file_id    TEXT {bytes},
    file_name  TEXT,
    batch_id   TEXT {bytes},
    message    TEXT NOT NULL,
    data       TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- Messages to other systems, each written in the transaction that caused it, one for each destination, deleted when
-- delivered. `place` is the order among the messages of one subject (a file, a batch).
CREATE TABLE outbox (
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
    -- Of a webhook message that is due: its place in the fair order.
    rank            BIGINT,
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

-- A used key and the id that it created, written in the transaction that created it.
CREATE TABLE idempotency_keys (
    tenant_id   TEXT {bytes} NOT NULL,
    user_id     TEXT {bytes} NOT NULL,
    route       TEXT {bytes} NOT NULL,
    key         TEXT {bytes} NOT NULL,
    fingerprint TEXT NOT NULL,
    made_id     TEXT {bytes} NOT NULL,
    expires_at  BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, user_id, route, key)
);

-- Tokens for programs. `hash` is the SHA-256 of the whole token, in hex; the token is stored nowhere. Ids begin with
-- their time. A key of a role that needs none has no tenant or no user.
CREATE TABLE service_keys (
    id           TEXT {bytes} PRIMARY KEY,
    hash         TEXT NOT NULL,
    name         TEXT,
    role         TEXT NOT NULL CHECK (role IN ('user', 'admin', 'operator', 'worker', 'ingest', 'metrics')),
    tenant_id    TEXT {bytes},
    user_id      TEXT {bytes},
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    revoked_at   BIGINT,
    last_used_at BIGINT
);

-- One process runs a scheduled sweep: the one that claims its row when it is due. The token is raised at every
-- claim; writes of a sweep with an older token are refused.
CREATE TABLE sweeps (
    name            TEXT {bytes} PRIMARY KEY,
    last_start_at   BIGINT,
    last_end_at     BIGINT,
    last_success_at BIGINT,
    last_result     TEXT,
    last_error      TEXT,
    next_run_at     BIGINT,
    lease_token     BIGINT NOT NULL DEFAULT 0,
    lease_owner     TEXT,
    lease_until     BIGINT NOT NULL DEFAULT 0
);

-- The last runs of each sweep. A run under the lease has its row from its claim on: while `ended_at` is NULL, it runs or
-- its process was lost. Other runs get their row when they end. Ids begin with the time of the start.
CREATE TABLE sweep_runs (
    id         TEXT {bytes} PRIMARY KEY,
    sweep      TEXT {bytes} NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at   BIGINT,
    dry_run    BIGINT NOT NULL,
    started_by TEXT NOT NULL,
    instance   TEXT NOT NULL,
    -- 1: it found nothing to do.
    idle       BIGINT NOT NULL,
    result     TEXT,
    error      TEXT
);

-- Scans that compare the store with the catalog: the current one, and the last that ended.
CREATE TABLE orphan_scans (
    id         TEXT {bytes} PRIMARY KEY,
    -- The store and the settings of the scan: it is resumed only under the same.
    premise    TEXT NOT NULL,
    -- 1: its findings are only shown. Nothing is deleted for them.
    dry_run    BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at   BIGINT,
    -- How many cleanups it has written.
    queued     BIGINT NOT NULL
);

-- The key ranges of a scan, each after `after_key` and up to `upto_key`, compared up to `at_key`.
CREATE TABLE orphan_scan_ranges (
    scan_id     TEXT {bytes} NOT NULL,
    ordinal     BIGINT NOT NULL,
    folder      TEXT {bytes} NOT NULL,
    after_key   TEXT {bytes} NOT NULL,
    upto_key    TEXT {bytes} NOT NULL,
    at_key      TEXT {bytes} NOT NULL,
    done        BIGINT NOT NULL,
    listed      BIGINT NOT NULL,
    found       BIGINT NOT NULL,
    missing     BIGINT NOT NULL,
    -- Objects of others: they have no row, and are not of our form or older than our marker.
    foreign_objects BIGINT NOT NULL,
    PRIMARY KEY (scan_id, ordinal)
);

-- Objects without a live row, from when they were found until they are deleted.
CREATE TABLE orphan_blobs (
    key         TEXT {bytes} PRIMARY KEY,
    size        BIGINT NOT NULL,
    modified_at BIGINT NOT NULL,
    scan_id     TEXT {bytes} NOT NULL,
    found_at    BIGINT NOT NULL,
    -- When its cleanup was written.
    queued_at   BIGINT
);

-- Live rows whose object is not in the store.
CREATE TABLE missing_blobs (
    key      TEXT {bytes} PRIMARY KEY,
    file_id  TEXT {bytes} NOT NULL,
    scan_id  TEXT {bytes} NOT NULL,
    found_at BIGINT NOT NULL
);

-- Rows of other tables that could not be read.
CREATE TABLE unreadable_rows (
    table_name TEXT {bytes} NOT NULL,
    row_id     TEXT {bytes} NOT NULL,
    error      TEXT NOT NULL,
    PRIMARY KEY (table_name, row_id)
);

CREATE TABLE catalog_facts (
    name  TEXT {bytes} PRIMARY KEY,
    value TEXT NOT NULL
);
