-- Large files come in parts of this size; the others whole.
ALTER TABLE files ADD COLUMN part_size BIGINT;

-- An unfinished upload in parts is to be ended with its object.
ALTER TABLE pending_cleanups ADD COLUMN in_parts BIGINT NOT NULL DEFAULT 0;
