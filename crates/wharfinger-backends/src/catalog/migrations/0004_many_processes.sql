-- Of many processes one runs a scheduled sweep: whoever claims its row when it is due. The fence is raised at every
-- claim, and whatever a sweep writes is refused once it is no longer the row's.

ALTER TABLE sweeps ADD COLUMN next_run_at BIGINT;
ALTER TABLE sweeps ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sweeps ADD COLUMN lease_owner TEXT;
ALTER TABLE sweeps ADD COLUMN lease_until BIGINT NOT NULL DEFAULT 0;
