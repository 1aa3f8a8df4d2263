-- How much each owner has in events, and what of it was removed.
CREATE TABLE usage (
    owner       TEXT PRIMARY KEY,
    events      INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    trimmed     INTEGER NOT NULL DEFAULT 0, -- how many events
    trimmed_seq INTEGER NOT NULL DEFAULT 0, -- the highest number among them
    trimmed_for TEXT NOT NULL DEFAULT ''    -- why the newest of them went
) STRICT, WITHOUT ROWID;

INSERT INTO usage (owner, events, bytes)
SELECT owner, count(*), sum(length(CAST(body AS BLOB)) + 128) FROM events GROUP BY owner;
