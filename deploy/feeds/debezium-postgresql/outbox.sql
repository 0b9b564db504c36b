-- A transactional outbox: the program writes a message in the transaction of what it tells, in the form that the topic
-- wants. aggregatetype is the topic, aggregateid the message's key, and without a payload it is a tombstone of that key.
-- PostgreSQL 14 or later with wal_level = logical.
CREATE TABLE outbox (
    id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    aggregatetype text NOT NULL CHECK (aggregatetype IN ('workflow-runs', 'gate-decisions', 'ledger-changes')),
    aggregateid text NOT NULL,
    type text NOT NULL DEFAULT 'row',
    -- json and not jsonb: the text stays as it was written.
    payload json
);

-- Deletions of rows that were sent say nothing, so they are not published.
CREATE PUBLICATION trace_projector_outbox FOR TABLE outbox WITH (publish = 'insert');

-- GRANT SELECT ON outbox TO debezium;
