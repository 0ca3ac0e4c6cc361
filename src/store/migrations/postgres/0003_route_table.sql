-- The route table in force, as a JSON document: it names the marks. NULL: none was recorded yet by a
-- version that records it; `templates` then says what version 0.1.0 knew. It stands in the row that
-- every instance locks when it joins, so that no one joins while the table is replaced.
ALTER TABLE namespaces ADD COLUMN routes text;
