-- One text for SQLite and PostgreSQL. {bytes} is the collation that sorts by bytes; times are milliseconds
-- since 1970 UTC; ids are UUIDv7 in their canonical spelling, so that they sort by time.

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
    pipeline_status TEXT NOT NULL CHECK (pipeline_status IN (
        'registered', 'uploaded', 'queued', 'scanning', 'extracting', 'chunking', 'embedding',
        'ready', 'failed', 'quarantined', 'deleted')),
    version         BIGINT NOT NULL,
    charged_bytes   BIGINT NOT NULL CHECK (charged_bytes >= 0 AND charged_bytes <= size),
    retry_count     BIGINT NOT NULL,
    error           TEXT,
    etag            TEXT,
    object_version  TEXT,
    end_reason      TEXT,
    url_dead_at     BIGINT NOT NULL,
    next_look_at    BIGINT,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    confirmed_at    BIGINT,
    ready_at        BIGINT,
    -- Whatever is not at rest says when it must be looked at next.
    CHECK (next_look_at IS NOT NULL OR pipeline_status IN ('ready', 'quarantined')),
    -- Only an unconfirmed or an ended file may be without a pin.
    CHECK (etag IS NOT NULL OR pipeline_status IN ('registered', 'deleted')),
    CHECK ((end_reason IS NOT NULL) = (pipeline_status = 'deleted'))
);
-- Lists pass over the dead without reading them.
CREATE INDEX files_by_owner ON files (tenant_id, user_id, id) WHERE pipeline_status <> 'deleted';
CREATE INDEX files_by_tenant ON files (tenant_id, id) WHERE pipeline_status <> 'deleted';
CREATE INDEX files_alive ON files (id) WHERE pipeline_status <> 'deleted';
CREATE INDEX files_charged ON files (tenant_id, pipeline_status, charged_bytes) WHERE charged_bytes > 0;
CREATE INDEX files_to_look_at ON files (next_look_at, id) WHERE next_look_at IS NOT NULL;

-- Every object that we put or let others put, written before it can exist.
CREATE TABLE objects (
    key        TEXT {bytes} PRIMARY KEY,
    file_id    TEXT {bytes} NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('original', 'derived')),
    upload_id  TEXT,
    created_at BIGINT NOT NULL
);
CREATE INDEX objects_by_file ON objects (file_id);

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

-- How many files of a user are in each status, and what they are charged: changed in the same commit as the
-- files, so that nobody has to count.
CREATE TABLE file_counts (
    tenant_id     TEXT {bytes} NOT NULL,
    user_id       TEXT {bytes} NOT NULL,
    status        TEXT NOT NULL,
    files         BIGINT NOT NULL,
    charged_bytes BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, user_id, status)
);

-- A tenant's limit (none: the default) and what it is charged.
CREATE TABLE quotas (
    tenant_id      TEXT {bytes} PRIMARY KEY,
    limit_bytes    BIGINT,
    used_bytes     BIGINT NOT NULL CHECK (used_bytes >= 0),
    reserved_bytes BIGINT NOT NULL CHECK (reserved_bytes >= 0 AND reserved_bytes <= used_bytes)
);

CREATE TABLE jobs (
    id           TEXT {bytes} PRIMARY KEY,
    queue        TEXT {bytes} NOT NULL,
    tenant_id    TEXT {bytes} NOT NULL,
    file_id      TEXT {bytes},
    payload      TEXT,
    state        TEXT NOT NULL CHECK (state IN ('waiting', 'leased', 'dead')),
    run_at       BIGINT NOT NULL,
    attempts     BIGINT NOT NULL,
    max_attempts BIGINT NOT NULL,
    -- Raised at every claim: whoever holds an older one has lost the job.
    lease_token  BIGINT NOT NULL,
    lease_owner  TEXT,
    lease_until  BIGINT,
    deadline_at  BIGINT,
    last_error   TEXT,
    dead_reason  TEXT,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    CHECK (state <> 'leased' OR (lease_until IS NOT NULL AND deadline_at IS NOT NULL))
);
CREATE INDEX jobs_waiting ON jobs (queue, run_at, id, tenant_id) WHERE state = 'waiting';
CREATE INDEX jobs_leased ON jobs (queue, tenant_id) WHERE state = 'leased';
CREATE INDEX jobs_lease_end ON jobs (lease_until) WHERE state = 'leased';
CREATE INDEX jobs_dead ON jobs (id) WHERE state = 'dead';
CREATE INDEX jobs_by_file ON jobs (file_id);

-- The one door out for bytes.
CREATE TABLE pending_cleanups (
    id              TEXT {bytes} PRIMARY KEY,
    file_path       TEXT {bytes} NOT NULL,
    storage_type    TEXT NOT NULL,
    reason          TEXT NOT NULL,
    tenant_id       TEXT {bytes} NOT NULL,
    document_id     TEXT {bytes} NOT NULL,
    size            BIGINT NOT NULL,
    attempts        BIGINT NOT NULL,
    max_attempts    BIGINT NOT NULL,
    last_error      TEXT,
    created_at      BIGINT NOT NULL,
    last_attempt_at BIGINT,
    next_attempt_at BIGINT NOT NULL,
    -- The bytes are deleted once more at this time: until then a URL may bring them back.
    finish_at       BIGINT NOT NULL,
    exhausted       BIGINT NOT NULL,
    lease_token     BIGINT NOT NULL,
    lease_until     BIGINT NOT NULL
);
CREATE INDEX pending_cleanups_due ON pending_cleanups (next_attempt_at, id);
CREATE INDEX pending_cleanups_by_tenant ON pending_cleanups (tenant_id, id);
CREATE INDEX pending_cleanups_by_document ON pending_cleanups (document_id);

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
CREATE INDEX notifications_by_user ON notifications (tenant_id, user_id, id);

-- A key that was used, and what it made. Written in the same transaction as what it made, so a key is never
-- half-used.
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
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

CREATE TABLE sweeps (
    name          TEXT {bytes} PRIMARY KEY,
    last_start_at BIGINT,
    last_end_at   BIGINT,
    last_result   TEXT,
    last_error    TEXT
);

CREATE TABLE catalog_facts (
    name  TEXT {bytes} PRIMARY KEY,
    value TEXT NOT NULL
);
