-- What the columns mean: src/marks/migrations/postgres/0002_terms.sql.

ALTER TABLE instances ADD COLUMN undelivered_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE instances ADD COLUMN routes TEXT NOT NULL DEFAULT '';
-- Only here: what makes the row differ with each heartbeat, so that it is written.
ALTER TABLE instances ADD COLUMN beats INTEGER NOT NULL DEFAULT 0;
ALTER TABLE marks ADD COLUMN given_back INTEGER NOT NULL DEFAULT 0;

CREATE INDEX epochs_of_instance ON epochs (namespace, instance, resource, opening);
DROP INDEX epochs_by_instance;
