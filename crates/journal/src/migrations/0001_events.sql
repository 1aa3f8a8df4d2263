CREATE TABLE events (
    seq    INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL, -- microseconds since 1970, UTC
    owner  TEXT NOT NULL,
    target TEXT NOT NULL,
    kind   TEXT NOT NULL,
    body   TEXT NOT NULL     -- the whole kind as JSON, tag included
) STRICT;

CREATE INDEX events_by_target ON events (owner, target, seq);
