-- The tables that the connector in connector.json captures, as far as the projection reads them; further columns are
-- ignored. PostgreSQL 14 or later with wal_level = logical.

-- The execution ledger: one row per change, never updated. The key is all that a deletion has to tell.
CREATE TABLE agent_execution_event (
    execution_id text NOT NULL,
    event_id text NOT NULL,
    revision bigint NOT NULL,
    transition jsonb NOT NULL,
    record jsonb NOT NULL,
    PRIMARY KEY (execution_id, event_id)
);

-- Runs and gates: rows that are rewritten. Of a large value that an update leaves alone (params, a prompt) the log holds
-- nothing, unless it holds the whole old row; without the second statement Debezium could only say that it is missing.
CREATE TABLE workflow_run (
    id text PRIMARY KEY,
    workflow_name text NOT NULL,
    params jsonb NOT NULL,
    status text NOT NULL,
    step_results jsonb NOT NULL,
    active_steps jsonb NOT NULL,
    revision bigint NOT NULL,
    started_at timestamptz NOT NULL,
    completed_at timestamptz,
    error text
);
ALTER TABLE workflow_run REPLICA IDENTITY FULL;

CREATE TABLE hitl_gate (
    id text PRIMARY KEY,
    prompt text NOT NULL,
    status text NOT NULL,
    payload jsonb,
    reason text,
    created_at timestamptz NOT NULL,
    resolved_at timestamptz,
    expires_at timestamptz,
    resolved_by jsonb,
    rule jsonb
);
ALTER TABLE hitl_gate REPLICA IDENTITY FULL;

-- Where old rows are pruned, a deletion is no message about a run: then say WITH (publish = 'insert, update').
CREATE PUBLICATION trace_projector FOR TABLE agent_execution_event, workflow_run, hitl_gate;

-- What the connector's user needs beside LOGIN and REPLICATION.
-- GRANT SELECT ON agent_execution_event, workflow_run, hitl_gate TO debezium;
