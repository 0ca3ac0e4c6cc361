-- What the columns mean: src/marks/migrations/postgres/0001_marks.sql. Text compares bytewise here
-- by default (BINARY); times are milliseconds since the Unix epoch.

CREATE TABLE namespaces (
    namespace TEXT NOT NULL PRIMARY KEY,
    era INTEGER NOT NULL CHECK (era >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE marks (
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    token INTEGER NOT NULL CHECK (token >= 0),
    previous INTEGER,
    spent_by TEXT,
    era INTEGER NOT NULL CHECK (era >= 0),
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, resource)
) STRICT, WITHOUT ROWID;

CREATE TABLE epochs (
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    instance TEXT NOT NULL,
    opening INTEGER NOT NULL,
    token INTEGER NOT NULL CHECK (token >= 0),
    PRIMARY KEY (namespace, resource, instance, opening)
) STRICT, WITHOUT ROWID;

CREATE INDEX epochs_by_instance ON epochs (namespace, instance);

CREATE TABLE instances (
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    renewals INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    settle_ms INTEGER NOT NULL,
    dead INTEGER NOT NULL CHECK (dead IN (0, 1)),
    PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE templates (
    namespace TEXT NOT NULL,
    path TEXT NOT NULL,
    template TEXT NOT NULL,
    PRIMARY KEY (namespace, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    action TEXT NOT NULL,
    before INTEGER,
    after INTEGER,
    reason TEXT NOT NULL,
    actor TEXT NOT NULL,
    at INTEGER NOT NULL
) STRICT;

CREATE INDEX audit_by_resource ON audit (namespace, resource, id);
