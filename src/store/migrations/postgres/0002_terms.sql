-- What the others reckon with after an instance's death, and which routes it serves.
ALTER TABLE instances
    -- How long its kernel may go on delivering what the instance had written upstream.
    ADD COLUMN undelivered_ms bigint NOT NULL DEFAULT 0,
    -- The digest of its route table.
    ADD COLUMN routes text NOT NULL DEFAULT '';

-- How often a spent token was given back (reuse: once). It tells a token that was given back from one whose
-- spending was lost in a failover.
ALTER TABLE marks ADD COLUMN given_back bigint NOT NULL DEFAULT 0;

-- An instance's rows, page by page in key order.
CREATE INDEX epochs_of_instance ON epochs (namespace, instance, resource, opening);
DROP INDEX epochs_by_instance;
