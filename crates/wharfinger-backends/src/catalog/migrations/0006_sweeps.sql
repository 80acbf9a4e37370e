-- When a file failed, and when its owner was told that it will be deleted for that.
ALTER TABLE files ADD COLUMN failed_at BIGINT;
ALTER TABLE files ADD COLUMN warned_at BIGINT;
UPDATE files SET failed_at = updated_at WHERE pipeline_status = 'failed';
CREATE INDEX files_failed ON files (failed_at, id) WHERE pipeline_status = 'failed';

-- The last run that came to its end without an error, and whether the present one was asked for by a person.
ALTER TABLE sweeps ADD COLUMN last_success_at BIGINT;
