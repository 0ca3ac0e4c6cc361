-- What the column means: src/marks/migrations/postgres/0003_route_table.sql.

ALTER TABLE namespaces ADD COLUMN routes TEXT;
