-- Only here: the boot of the machine that the instance ran on (boot_id of Linux; empty: unknown). Under
-- the same one the kernel that gave the file's lock away has ended the instance.
ALTER TABLE instances ADD COLUMN boot TEXT NOT NULL DEFAULT '';
