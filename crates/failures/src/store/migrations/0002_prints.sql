-- A new failing finds the group of its fingerprint by it: the one that was seen last.
CREATE INDEX failures_by_print ON failures (project_id, fingerprint, last_seen);
