-- All indexes except primary keys and `chunks_to_copy` (pgvector.rs). `migrate` creates missing ones, on PostgreSQL
-- CONCURRENTLY. A changed index gets a new name; the old name goes to the list of dropped ones in schema.rs.

-- Lists of live files.
CREATE INDEX files_by_owner ON files (tenant_id, user_id, id) WHERE pipeline_status <> 'deleted';
CREATE INDEX files_by_tenant ON files (tenant_id, id) WHERE pipeline_status <> 'deleted';
CREATE INDEX files_alive ON files (id) WHERE pipeline_status <> 'deleted';
CREATE INDEX files_by_batch ON files (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX files_charged ON files (tenant_id, pipeline_status, charged_bytes) WHERE charged_bytes > 0;

-- Each sweep reads its own statuses: a long queue does not delay the check of overdue uploads.
CREATE INDEX files_to_check ON files (pipeline_status, next_check_at, id) WHERE next_check_at IS NOT NULL;
CREATE INDEX files_overdue_of_tenant ON files (tenant_id, next_check_at, user_id)
    WHERE pipeline_status IN ('uploaded', 'queued', 'scanning', 'extracting', 'chunking', 'embedding');
CREATE INDEX files_failed ON files (failed_at, id) WHERE pipeline_status = 'failed';
CREATE INDEX files_quarantined ON files (failed_at, id) WHERE pipeline_status = 'quarantined';

-- The last successes and the last failures: of a user, of a tenant, of all.
CREATE INDEX files_ready_of_user ON files (tenant_id, user_id, ready_at, confirmed_at) WHERE pipeline_status = 'ready';
CREATE INDEX files_ready_of_tenant ON files (tenant_id, ready_at, confirmed_at) WHERE pipeline_status = 'ready';
CREATE INDEX files_ready ON files (ready_at, confirmed_at) WHERE pipeline_status = 'ready';
CREATE INDEX files_wrong_of_user ON files (tenant_id, user_id, COALESCE(failed_at, updated_at))
    WHERE pipeline_status IN ('failed', 'quarantined');
CREATE INDEX files_wrong_of_tenant ON files (tenant_id, COALESCE(failed_at, updated_at))
    WHERE pipeline_status IN ('failed', 'quarantined');
CREATE INDEX files_wrong ON files (COALESCE(failed_at, updated_at)) WHERE pipeline_status IN ('failed', 'quarantined');
CREATE INDEX file_outcomes_by_time ON file_outcomes (at);

CREATE INDEX file_counts_zero ON file_counts (tenant_id, user_id, status, stage)
    WHERE files = 0 AND charged_bytes = 0;

CREATE INDEX objects_by_file ON objects (file_id);

CREATE INDEX jobs_scheduled ON jobs (queue, run_at, id)
    WHERE state = 'waiting' AND rank IS NULL AND lost_leases = 0;
CREATE INDEX jobs_ranked ON jobs (queue, rank, id) WHERE state = 'waiting' AND rank IS NOT NULL;
CREATE INDEX jobs_suspect ON jobs (queue, run_at, id) WHERE state = 'waiting' AND lost_leases > 0;
CREATE INDEX jobs_claimed ON jobs (claim_id) WHERE state = 'leased';
CREATE INDEX jobs_lease_end ON jobs (lease_until) WHERE state = 'leased';
CREATE INDEX jobs_dead ON jobs (id) WHERE state = 'dead';
CREATE INDEX jobs_by_file ON jobs (file_id);

CREATE INDEX upload_batches_active ON upload_batches (expires_at, id) WHERE status = 'active';
CREATE INDEX upload_batches_ended ON upload_batches (ended_at, id) WHERE status <> 'active';
CREATE INDEX upload_batches_by_owner ON upload_batches (tenant_id, user_id, status);
CREATE INDEX upload_batches_open ON upload_batches (tenant_id, user_id) WHERE status = 'active';

CREATE INDEX pending_cleanups_scheduled ON pending_cleanups (storage_type, next_attempt_at, id) WHERE rank IS NULL;
CREATE INDEX pending_cleanups_ranked ON pending_cleanups (storage_type, rank, id) WHERE rank IS NOT NULL;
CREATE INDEX pending_cleanups_of_tenant ON pending_cleanups (tenant_id, storage_type, next_attempt_at, id);
CREATE INDEX pending_cleanups_failed ON pending_cleanups (next_attempt_at) WHERE last_error IS NOT NULL;
CREATE INDEX pending_cleanups_of_orphans ON pending_cleanups (created_at) WHERE reason = 'orphan_blob';
CREATE INDEX pending_cleanups_exhausted ON pending_cleanups (tenant_id, id) WHERE exhausted = 1;
CREATE INDEX pending_cleanups_by_tenant ON pending_cleanups (tenant_id, id);
CREATE INDEX pending_cleanups_by_document ON pending_cleanups (document_id);
CREATE INDEX pending_cleanups_by_path ON pending_cleanups (file_path);

CREATE INDEX deletion_log_by_time ON deletion_log (deleted_at, id);
CREATE INDEX deletion_log_of_tenant ON deletion_log (tenant_id, deleted_at, id);

CREATE INDEX audit_log_by_time ON audit_log (at, id);
CREATE INDEX audit_log_of_tenant ON audit_log (tenant_id, id);

CREATE INDEX sweep_runs_by_sweep ON sweep_runs (sweep, id);

CREATE INDEX notifications_by_user ON notifications (tenant_id, user_id, id);

CREATE INDEX outbox_by_age ON outbox (destination, created_at);
CREATE INDEX outbox_scheduled ON outbox (destination, next_attempt_at, id) WHERE rank IS NULL;
CREATE INDEX outbox_ranked ON outbox (destination, rank, id) WHERE rank IS NOT NULL;
CREATE INDEX outbox_refunds ON outbox (tenant_id, epoch) WHERE destination = 'quota';
CREATE INDEX outbox_in_order ON outbox (destination, subject, place) WHERE subject IS NOT NULL;

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);

CREATE INDEX service_keys_ended ON service_keys (COALESCE(revoked_at, expires_at), id);

CREATE INDEX orphan_blobs_to_queue ON orphan_blobs (scan_id, key) WHERE queued_at IS NULL;
