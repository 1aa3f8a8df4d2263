-- Sessions are looked for by name, and by whose default session they were.
CREATE INDEX events_opened ON events (owner, seq) WHERE kind = 'session_opened';
