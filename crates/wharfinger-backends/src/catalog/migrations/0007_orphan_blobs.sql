-- Scans that compare the store with the catalog: the one that is under way, and the last that ended.
CREATE TABLE orphan_scans (
    id         TEXT {bytes} PRIMARY KEY,
    -- The store and the settings it looks with: it is gone on with only under the same.
    premise    TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at   BIGINT,
    -- How many orphans it has ordered to be deleted.
    queued     BIGINT NOT NULL
);

-- The ranges a scan has cut the keys into, each behind `after_key` and up to `upto_key`, compared up to `at_key`.
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
    undeletable BIGINT NOT NULL,
    missing     BIGINT NOT NULL,
    PRIMARY KEY (scan_id, ordinal)
);

-- Objects that no live row answers for, from when they were found until they are deleted.
CREATE TABLE orphan_blobs (
    key         TEXT {bytes} PRIMARY KEY,
    size        BIGINT NOT NULL,
    modified_at BIGINT NOT NULL,
    scan_id     TEXT {bytes} NOT NULL,
    found_at    BIGINT NOT NULL,
    -- When its order was written.
    queued_at   BIGINT
);
CREATE INDEX orphan_blobs_to_queue ON orphan_blobs (scan_id, key) WHERE queued_at IS NULL;

-- Rows whose object is not in the store.
CREATE TABLE missing_blobs (
    key      TEXT {bytes} PRIMARY KEY,
    file_id  TEXT {bytes} NOT NULL,
    scan_id  TEXT {bytes} NOT NULL,
    found_at BIGINT NOT NULL
);

CREATE INDEX pending_cleanups_by_path ON pending_cleanups (file_path);
