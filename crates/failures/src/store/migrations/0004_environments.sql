-- The packages that were installed where a run was made. Many runs have the same ones.
CREATE TABLE environments (
    hash TEXT PRIMARY KEY,
    packages TEXT NOT NULL
);
ALTER TABLE runs ADD COLUMN environment TEXT;
