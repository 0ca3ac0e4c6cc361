-- What the columns mean: src/store/postgres/schema.sql. Text compares bytewise here by default
-- (BINARY); times are milliseconds since the Unix epoch.

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
    PRIMARY KEY (namespace, resource)
) STRICT, WITHOUT ROWID;

-- Only here: one tree instead of a table and an index of it, so that to open or close an epoch writes one
-- page less. An instance's rows lie together. Those of a resource are found with each instance that has rows.
CREATE TABLE epochs (
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    instance TEXT NOT NULL,
    opening INTEGER NOT NULL,
    token INTEGER NOT NULL CHECK (token >= 0),
    PRIMARY KEY (namespace, instance, resource, opening)
) STRICT, WITHOUT ROWID;

CREATE TABLE instances (
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    renewals INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    settle_ms INTEGER NOT NULL,
    dead INTEGER NOT NULL CHECK (dead IN (0, 1)),
    undelivered_ms INTEGER NOT NULL,
    routes TEXT NOT NULL,
    -- Only here: what makes the row differ with each heartbeat, so that it is written.
    beats INTEGER NOT NULL DEFAULT 0,
    -- Only here: the boot of the machine that the instance ran on (boot_id of Linux; empty: unknown). Under
    -- the same one the kernel that gave the file's lock away has ended the instance.
    boot TEXT NOT NULL,
    PRIMARY KEY (namespace, id)
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

-- Only here: how many transactions the file has had. A running proxy knows the number: a file that has
-- another one was overwritten meanwhile, by a backup of an earlier state, say.
CREATE TABLE commits (
    count INTEGER NOT NULL
) STRICT;

INSERT INTO commits (count) VALUES (0);
