-- Only here: how many transactions the file has had. A running proxy knows the number: a file that has
-- another one was overwritten meanwhile, by a backup of an earlier state, say.
CREATE TABLE commits (
    count INTEGER NOT NULL
) STRICT;

INSERT INTO commits (count) VALUES (0);
