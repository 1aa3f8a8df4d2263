-- One text for both databases: `{key}` is a number that the database gives. Times are microseconds since 1970, truths 0 and 1.

CREATE TABLE projects (
    id {key},
    key TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    root TEXT NOT NULL,
    remote TEXT
);

-- `run` is the reporter's own id. Counts are of reports, as pytest counts.
CREATE TABLE runs (
    id {key},
    run TEXT NOT NULL UNIQUE,
    project_id BIGINT NOT NULL REFERENCES projects (id),
    source TEXT NOT NULL,
    began BIGINT NOT NULL,
    ended BIGINT,
    exit_code BIGINT,
    seconds DOUBLE PRECISION,
    not_run BIGINT NOT NULL DEFAULT 0,
    note TEXT,
    host TEXT,
    who TEXT,
    python TEXT,
    pytest TEXT,
    platform TEXT,
    ci BIGINT NOT NULL DEFAULT 0,
    workers BIGINT,
    commit_id TEXT,
    branch TEXT,
    dirty BIGINT NOT NULL DEFAULT 0,
    code TEXT,
    code_how TEXT,
    changed TEXT NOT NULL DEFAULT '[]',
    detail TEXT NOT NULL DEFAULT '{}',
    passed BIGINT NOT NULL DEFAULT 0,
    failed BIGINT NOT NULL DEFAULT 0,
    error BIGINT NOT NULL DEFAULT 0,
    skipped BIGINT NOT NULL DEFAULT 0,
    xfailed BIGINT NOT NULL DEFAULT 0,
    xpassed BIGINT NOT NULL DEFAULT 0,
    rerun BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX runs_by_time ON runs (began);
CREATE INDEX runs_by_project ON runs (project_id, began);

CREATE TABLE tests (
    id {key},
    project_id BIGINT NOT NULL REFERENCES projects (id),
    nodeid TEXT NOT NULL,
    file TEXT,
    line BIGINT,
    UNIQUE (project_id, nodeid)
);

CREATE TABLE groups (
    id {key},
    name TEXT NOT NULL UNIQUE,
    project_id BIGINT NOT NULL REFERENCES projects (id),
    reason TEXT NOT NULL,
    by_hand BIGINT NOT NULL DEFAULT 0,
    merged_into BIGINT REFERENCES groups (id),
    -- The run it was first seen in: what a run has put apart it may put together.
    run_id BIGINT NOT NULL,
    made BIGINT NOT NULL
);

-- What a group was seen with: a cluster of failures that has been seen before finds its group by it.
CREATE TABLE group_prints (
    group_id BIGINT NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    fingerprint TEXT NOT NULL,
    PRIMARY KEY (group_id, fingerprint)
);
CREATE INDEX group_prints_by_print ON group_prints (fingerprint);

-- Said by hand: this fingerprint belongs there, whatever it is seen with.
CREATE TABLE pins (
    project_id BIGINT NOT NULL REFERENCES projects (id),
    fingerprint TEXT NOT NULL,
    group_id BIGINT NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    PRIMARY KEY (project_id, fingerprint)
);

CREATE TABLE failures (
    id {key},
    name TEXT NOT NULL UNIQUE,
    project_id BIGINT NOT NULL REFERENCES projects (id),
    test_id BIGINT NOT NULL REFERENCES tests (id),
    fingerprint TEXT NOT NULL,
    group_id BIGINT NOT NULL REFERENCES groups (id),
    status TEXT NOT NULL,
    verified BIGINT NOT NULL DEFAULT 0,
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    pattern TEXT NOT NULL,
    phase TEXT NOT NULL,
    file TEXT,
    line BIGINT,
    function TEXT,
    traits TEXT NOT NULL,
    first_seen BIGINT NOT NULL,
    last_seen BIGINT NOT NULL,
    first_run BIGINT NOT NULL,
    last_run BIGINT NOT NULL,
    occurrences BIGINT NOT NULL,
    UNIQUE (test_id, fingerprint)
);
CREATE INDEX failures_by_time ON failures (last_seen, id);
CREATE INDEX failures_by_group ON failures (group_id);

-- Every report of every test, small.
CREATE TABLE outcomes (
    run_id BIGINT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    test_id BIGINT NOT NULL REFERENCES tests (id),
    attempt BIGINT NOT NULL,
    phase TEXT NOT NULL,
    subtest TEXT NOT NULL,
    outcome TEXT NOT NULL,
    at BIGINT NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    failure_id BIGINT,
    PRIMARY KEY (run_id, test_id, attempt, phase, subtest)
){without_rowid};
CREATE INDEX outcomes_by_test ON outcomes (test_id, at);

-- What was seen each time, the newest of each failure in full.
CREATE TABLE occurrences (
    id {key},
    failure_id BIGINT NOT NULL REFERENCES failures (id) ON DELETE CASCADE,
    run_id BIGINT NOT NULL,
    occurrence TEXT NOT NULL,
    at BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    subtest TEXT NOT NULL,
    test TEXT NOT NULL,
    evidence TEXT
);
CREATE INDEX occurrences_by_failure ON occurrences (failure_id, at);
CREATE INDEX occurrences_by_run ON occurrences (run_id);
CREATE INDEX occurrences_by_name ON occurrences (occurrence);

CREATE TABLE investigations (
    id {key},
    failure_id BIGINT NOT NULL REFERENCES failures (id) ON DELETE CASCADE,
    rule BIGINT,
    analysis TEXT NOT NULL,
    author TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX investigations_by_failure ON investigations (failure_id, at);

-- What people said a failure is.
CREATE TABLE marks (
    id {key},
    failure_id BIGINT NOT NULL REFERENCES failures (id) ON DELETE CASCADE,
    status TEXT NOT NULL,
    verified BIGINT NOT NULL,
    author TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX marks_by_failure ON marks (failure_id);

CREATE TABLE changes (
    failure_id BIGINT NOT NULL REFERENCES failures (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    old TEXT,
    new TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (failure_id, at, new)
);
