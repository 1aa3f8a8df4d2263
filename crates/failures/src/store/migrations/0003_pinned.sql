-- Said by hand: this failure belongs there, whatever it is seen with. Others that fail in the same way are not meant.
CREATE TABLE pinned (
    test_id BIGINT NOT NULL REFERENCES tests (id),
    fingerprint TEXT NOT NULL,
    project_id BIGINT NOT NULL REFERENCES projects (id),
    group_id BIGINT NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    PRIMARY KEY (test_id, fingerprint)
);
CREATE INDEX pinned_by_print ON pinned (project_id, fingerprint);
INSERT INTO pinned (test_id, fingerprint, project_id, group_id)
    SELECT f.test_id, f.fingerprint, p.project_id, p.group_id FROM pins p
    JOIN failures f ON f.project_id = p.project_id AND f.fingerprint = p.fingerprint;
DROP TABLE pins;
-- When the commit was made that a run tested.
ALTER TABLE runs ADD COLUMN committed BIGINT;
