-- What the columns mean: src/store/postgres/schema.sql. Text compares bytewise here by default
-- (BINARY); times are milliseconds since the Unix epoch; arrays of numbers are JSON.

CREATE TABLE namespaces (
    namespace TEXT NOT NULL PRIMARY KEY,
    era INTEGER NOT NULL CHECK (era >= 0),
    routes TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE marks (
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    token INTEGER NOT NULL CHECK (token >= 0),
    previous INTEGER,
    spent_by TEXT,
    era INTEGER NOT NULL CHECK (era >= 0),
    changed_at INTEGER NOT NULL,
    given_back INTEGER NOT NULL DEFAULT 0,
    open TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (namespace, resource)
) STRICT, WITHOUT ROWID;

CREATE TABLE instances (
    namespace TEXT NOT NULL,
    id INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state IN (0, 1, 2)),
    renewals INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    settle_ms INTEGER NOT NULL,
    undelivered_ms INTEGER NOT NULL,
    routes TEXT NOT NULL,
    closed_below INTEGER NOT NULL,
    left_open TEXT NOT NULL,
    -- The boot of the machine that the instance ran on (boot_id of Linux; empty: unknown). Under the same one
    -- the kernel that gave the file's lock away has ended the instance.
    place TEXT NOT NULL,
    PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX instances_not_settled ON instances (namespace) WHERE state < 2;

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

CREATE TABLE operations (
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    operation TEXT NOT NULL,
    attempt TEXT NOT NULL,
    digest TEXT NOT NULL,
    token INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state IN (0, 1, 2)),
    answer TEXT,
    since INTEGER NOT NULL,
    expires INTEGER,
    PRIMARY KEY (namespace, resource, operation)
) STRICT, WITHOUT ROWID;

CREATE INDEX operations_not_known ON operations (namespace, since) WHERE state < 2;
CREATE INDEX operations_by_expiry ON operations (namespace, expires) WHERE expires IS NOT NULL;

-- Only here: how many transactions the file has had. A running proxy knows the number: a file that has
-- another one was overwritten meanwhile, by a backup of an earlier state, say.
CREATE TABLE commits (
    count INTEGER NOT NULL
) STRICT;

INSERT INTO commits (count) VALUES (0);
