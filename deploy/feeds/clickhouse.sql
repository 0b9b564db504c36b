-- ClickHouse reads the topic of a kafka: export by itself. A ClickPipe does the same without the first and the last
-- statement: map its _key, _raw_message and headers to the columns of traces.
--
-- The engine passes over messages without a value, so deletions do not arrive (an erased run, a record that left the
-- export's filter): where they have to, use Kafka Connect, or a clickhouse: export.
CREATE TABLE traces_topic (record String)
ENGINE = Kafka
SETTINGS
    kafka_broker_list = 'kafka:9092',
    kafka_topic_list = 'traces',
    kafka_group_name = 'clickhouse-traces',
    -- One message is one value; librdkafka reads committed messages only unless it is told otherwise.
    kafka_format = 'RawBLOB';

CREATE TABLE traces (
    record_key String,
    kind LowCardinality(String),
    -- Generation first, then offset: what orders the versions of a record.
    version UInt128,
    record String
)
ENGINE = ReplacingMergeTree(version)
ORDER BY record_key;

CREATE MATERIALIZED VIEW traces_reader TO traces AS
SELECT
    _key AS record_key,
    _headers.value[indexOf(_headers.name, 'kind')] AS kind,
    bitShiftLeft(toUInt128(_headers.value[indexOf(_headers.name, 'generation')]), 64)
        + toUInt128(_headers.value[indexOf(_headers.name, 'offset')]) AS version,
    record
FROM traces_topic;

-- Rows are replaced when parts are merged; FINAL shows the newest ones before.
SELECT JSONExtractString(record, 'status') AS status, count() AS runs
FROM traces FINAL
WHERE kind = 'run'
GROUP BY status;
