-- Only here: one tree instead of a table and an index of it, so that to open or close an epoch writes one
-- page less. An instance's rows lie together. Those of a resource are found with each instance that has rows.

CREATE TABLE epochs_by_instance (
    namespace TEXT NOT NULL,
    resource TEXT NOT NULL,
    instance TEXT NOT NULL,
    opening INTEGER NOT NULL,
    token INTEGER NOT NULL CHECK (token >= 0),
    PRIMARY KEY (namespace, instance, resource, opening)
) STRICT, WITHOUT ROWID;

INSERT INTO epochs_by_instance (namespace, resource, instance, opening, token)
SELECT namespace, resource, instance, opening, token FROM epochs ORDER BY namespace, instance, resource, opening;

DROP TABLE epochs;
ALTER TABLE epochs_by_instance RENAME TO epochs;
