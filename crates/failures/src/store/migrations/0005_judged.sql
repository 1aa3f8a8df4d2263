-- What a pass is compared by: the interpreter, files that are not code, and how many tests had run before.
ALTER TABLE runs ADD COLUMN implementation TEXT;
ALTER TABLE runs ADD COLUMN other TEXT;
ALTER TABLE outcomes ADD COLUMN ran_before BIGINT;
-- The run that shows a change of a failure's status.
ALTER TABLE changes ADD COLUMN run TEXT;
CREATE INDEX changes_by_run ON changes (run);
-- About a passing run that shows nothing.
ALTER TABLE failures ADD COLUMN note TEXT;
ALTER TABLE failures ADD COLUMN note_run TEXT;
CREATE INDEX failures_by_note ON failures (note_run);
-- What occurred in a time is counted by it.
CREATE INDEX outcomes_of_failures ON outcomes (at) WHERE failure_id IS NOT NULL;
