-- Figures come from counters and indexes, so that nobody has to count. Whoever still writes by the old counters is kept
-- from it while they are made anew.
{files alone}

-- A failed file whose dead letter was discarded names no stage: nothing will begin there.
UPDATE files SET stage = NULL WHERE pipeline_status = 'failed' AND stage IS NOT NULL AND NOT EXISTS
    (SELECT 1 FROM jobs WHERE jobs.file_id = files.id AND jobs.state = 'dead' AND jobs.queue LIKE 'file-%');

-- Those that wait are counted by the stage they wait for, failures by the stage of their dead letter; others have none.
-- `changes` is raised with every change of the row: who has seen it need not look at the rest again.
CREATE TABLE file_counts_by_stage (
    tenant_id     TEXT {bytes} NOT NULL,
    user_id       TEXT {bytes} NOT NULL,
    status        TEXT {bytes} NOT NULL,
    stage         TEXT {bytes} NOT NULL,
    files         BIGINT NOT NULL,
    charged_bytes BIGINT NOT NULL,
    changes       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, user_id, status, stage)
);
INSERT INTO file_counts_by_stage (tenant_id, user_id, status, stage, files, charged_bytes)
    SELECT tenant_id, user_id, pipeline_status,
    CASE WHEN pipeline_status IN ('queued', 'failed') THEN COALESCE(stage, '') ELSE '' END,
    COUNT(*), CAST(SUM(charged_bytes) AS BIGINT)
    FROM files GROUP BY 1, 2, 3, 4;
DROP TABLE file_counts;
ALTER TABLE file_counts_by_stage RENAME TO file_counts;

-- How many of a user's files came to which end within each quarter of an hour, as far as they are still there. Only the
-- last days are kept.
CREATE TABLE file_outcomes (
    tenant_id TEXT {bytes} NOT NULL,
    user_id   TEXT {bytes} NOT NULL,
    at        BIGINT NOT NULL,
    outcome   TEXT {bytes} NOT NULL CHECK (outcome IN ('ready', 'failed', 'quarantined')),
    files     BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, user_id, at, outcome)
);
CREATE INDEX file_outcomes_by_time ON file_outcomes (at);
INSERT INTO file_outcomes (tenant_id, user_id, at, outcome, files)
    SELECT tenant_id, user_id, ended_at / 900000 * 900000, pipeline_status, COUNT(*) FROM
    (SELECT tenant_id, user_id, pipeline_status, CASE pipeline_status WHEN 'ready' THEN COALESCE(ready_at, updated_at)
    WHEN 'failed' THEN COALESCE(failed_at, updated_at) ELSE updated_at END AS ended_at
    FROM files WHERE pipeline_status IN ('ready', 'failed', 'quarantined')) AS ended
    WHERE ended_at > {now} - 172800000 GROUP BY 1, 2, 3, 4;

-- What is overdue of a tenant: another tenant's backlog is not read for it.
CREATE INDEX files_overdue_of_tenant ON files (tenant_id, next_look_at, user_id)
    WHERE pipeline_status IN ('uploaded', 'queued', 'scanning', 'extracting', 'chunking', 'embedding');

-- The last that went well and the last that went wrong: of a user, of a tenant, of all.
CREATE INDEX files_ready_of_user ON files (tenant_id, user_id, ready_at, confirmed_at) WHERE pipeline_status = 'ready';
CREATE INDEX files_ready_of_tenant ON files (tenant_id, ready_at, confirmed_at) WHERE pipeline_status = 'ready';
CREATE INDEX files_ready ON files (ready_at, confirmed_at) WHERE pipeline_status = 'ready';
CREATE INDEX files_wrong_of_user ON files (tenant_id, user_id, COALESCE(failed_at, updated_at))
    WHERE pipeline_status IN ('failed', 'quarantined');
CREATE INDEX files_wrong_of_tenant ON files (tenant_id, COALESCE(failed_at, updated_at))
    WHERE pipeline_status IN ('failed', 'quarantined');
CREATE INDEX files_wrong ON files (COALESCE(failed_at, updated_at)) WHERE pipeline_status IN ('failed', 'quarantined');

CREATE INDEX upload_batches_open ON upload_batches (tenant_id, user_id) WHERE status = 'active';
