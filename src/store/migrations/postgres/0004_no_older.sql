-- No proxy of version 0.1.0 may come back, however long it was cut off or frozen: it waits for less after a
-- death. Such an instance has recorded no `undelivered_ms`. Its renewals find it dead from here on, and its
-- joins name neither column, so they are refused. The defaults go first: that locks the table, so that
-- nobody renews or joins between the two.
ALTER TABLE instances
    ALTER COLUMN undelivered_ms DROP DEFAULT,
    ALTER COLUMN routes DROP DEFAULT;

UPDATE instances SET dead = true WHERE NOT dead AND undelivered_ms = 0;
