-- Flink SQL on the topic of a kafka: export. The newest message of a key is its record, one without a value deletes it,
-- which is what upsert-kafka makes of it. The key is kind:id, so the two can be told apart before the value is parsed.
CREATE TABLE traces (
    record_key STRING,
    record STRING,
    PRIMARY KEY (record_key) NOT ENFORCED
) WITH (
    'connector' = 'upsert-kafka',
    'topic' = 'traces',
    'properties.bootstrap.servers' = 'kafka:9092',
    'properties.group.id' = 'flink-traces',
    -- Batches are transactions: without this, parts of one that failed would be read.
    'properties.isolation.level' = 'read_committed',
    'key.format' = 'raw',
    'value.format' = 'raw',
    'value.fields-include' = 'EXCEPT_KEY'
);

-- Runs by workflow and status, kept up to date as they go on.
SELECT
    JSON_VALUE(record, '$.workflowName') AS workflow_name,
    JSON_VALUE(record, '$.status') AS status,
    COUNT(*) AS runs
FROM traces
WHERE record_key LIKE 'run:%'
GROUP BY JSON_VALUE(record, '$.workflowName'), JSON_VALUE(record, '$.status');
