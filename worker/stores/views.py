"""The views that every destination with SQL has to start from: ``trace_spend``, ``trace_attempts``, ``trace_runs``.

Rules for editing: one text for all of them, in the SQL that they share; what they say differently is a field of
``Dialect``. A view grows at its end only, because PostgreSQL replaces a view in place only so. Any change here is a new
schema version of every destination. Spend follows ``fold_usage``, which a test holds it to.
"""

from typing import Final, NamedTuple


class Dialect(NamedTuple):
    """What the destinations say differently; ``{}`` stands for expressions."""

    utc_day: str
    """The date, in UTC, of a time."""
    seconds: str
    """The seconds from the first time to the second, as a double."""
    total: str
    """The sum of doubles, in the order of the second expression: so its last digit is the same every time."""
    micros: str
    """Microseconds since 1970 of a time, as a whole number."""
    contains: str
    """Whether the first text holds the second, which is in lower case, whatever the case of the first."""
    any_order: str
    """The sum of doubles in whatever order, for what is shown rounded."""
    parameter: str
    """How a query names a parameter."""
    any_true: str = "bool_or({})"
    """Whether a condition is true in any row of a window."""
    settings: str = ""
    """What a view says behind its query."""
    binary: str = ""
    """What makes texts be ordered by their bytes."""


DUCKDB: Final = Dialect(
    utc_day="CAST(make_timestamp(epoch_us({})) AS DATE)",
    seconds="(epoch_us({1}) - epoch_us({0})) / 1e6",
    total="fsum({} ORDER BY {})",
    micros="epoch_us({})",
    contains="contains(lower({}), {})",
    any_order="fsum({})",
    parameter="${}",
)
POSTGRESQL: Final = Dialect(
    utc_day="CAST({} AT TIME ZONE 'UTC' AS DATE)",
    seconds="CAST(extract(epoch FROM {1} - {0}) AS DOUBLE PRECISION)",
    total="sum({} ORDER BY {})",
    micros="CAST(extract(epoch FROM {}) * 1000000 AS BIGINT)",
    contains="strpos(lower({}), {}) > 0",
    any_order="sum({})",
    parameter="%({})s",
    binary=' COLLATE "C"',
)
CLICKHOUSE: Final = Dialect(
    utc_day="toDate({}, 'UTC')",
    seconds="toFloat64({1} - {0})",
    # ClickHouse has no order within an aggregate, and its sums depend on how the rows were spread over threads.
    total="if(count({0}) = 0, NULL, arrayReduce('sumKahan', arrayMap(p -> p.2, arraySort(groupArray(({1}, {0}))))))",
    micros="toUnixTimestamp64Micro({})",
    contains="position(lowerUTF8({}), {}) > 0",
    any_order="sumKahan({})",
    parameter="%({})s",
    any_true="max({})",
    # Otherwise count(cost_usd) is that of the sum which has the same name, where there is one.
    settings=" SETTINGS prefer_column_name_to_alias = 1",
)

# The rule of fold_usage, per conversation: deltas supersede snapshots, and in one epoch the conversation's snapshot
# those of its turns. (Of one response, and of one counter in one epoch, there is one record: its id is made of these.)
_COUNTED: Final = """
FROM (
    SELECT *,
        {has_deltas} OVER (PARTITION BY conversation) AS has_deltas,
        {is_covered} OVER (PARTITION BY conversation, epoch) AS is_covered
    FROM {costs}
) AS costs
WHERE measurement_kind = 'delta' OR (NOT has_deltas AND (scope = 'conversation' OR NOT is_covered))
"""

_SPEND: Final = """
SELECT id AS cost_id, run_id, attempt_id, conversation, spent_at, {day} AS day,
    model, measurement_kind, input_tokens, output_tokens, cached_input_tokens, cache_write_input_tokens,
    reasoning_output_tokens, total_tokens, cost_usd, cost_kind, price_basis, price_reason, price_table_version, source
"""

_ATTEMPTS: Final = """
WITH calls AS (
    SELECT attempt_id, count(*) AS calls, count(*) FILTER (WHERE call_kind = 'tool') AS tool_calls,
        count(*) FILTER (WHERE call_kind = 'tool' AND is_error) AS tool_errors
    FROM trace_call GROUP BY attempt_id
), gates AS (
    SELECT attempt_id, count(*) FILTER (WHERE status = 'pending') AS open_gates,
        {waited} AS gate_wait_s
    FROM trace_gate GROUP BY attempt_id
), spend AS (
    -- The attempt's own cost is what its sources knew; this adds the estimates of an export that makes some.
    SELECT attempt_id, {known_cost} AS known_cost_usd, count(*) - count(cost_usd) AS costs_unknown
    FROM trace_spend GROUP BY attempt_id
)
SELECT run_id, id AS attempt_id, step_id, iteration, attempt, step_kind, phase, outcome, retryable, error, signal,
    started_at, completed_at, {duration} AS duration_s, agent_id, runner_ref, execution_id,
    conversation, model, coalesce(calls, 0) AS calls, coalesce(tool_calls, 0) AS tool_calls,
    coalesce(tool_errors, 0) AS tool_errors, coalesce(open_gates, 0) AS open_gates, gate_wait_s,
    input_tokens, output_tokens, cost_usd, known_cost_usd, coalesce(costs_unknown, 0) AS costs_unknown
FROM trace_attempt
LEFT JOIN calls ON calls.attempt_id = trace_attempt.id
LEFT JOIN gates ON gates.attempt_id = trace_attempt.id
LEFT JOIN spend ON spend.attempt_id = trace_attempt.id
"""

_RUNS: Final = """
WITH attempts AS (
    SELECT run_id, count(*) AS attempts, count(*) FILTER (WHERE attempt > 0) AS retries,
        count(*) FILTER (WHERE outcome = 'failed') AS failed_attempts
    FROM trace_attempt GROUP BY run_id
), gates AS (
    SELECT run_id, count(*) FILTER (WHERE status = 'pending') AS open_gates FROM trace_gate GROUP BY run_id
), calls AS (
    SELECT run_id, count(*) AS calls, count(*) FILTER (WHERE call_kind = 'tool') AS tool_calls,
        count(*) FILTER (WHERE call_kind = 'tool' AND is_error) AS tool_errors
    FROM trace_call GROUP BY run_id
), spend AS (
    -- A sum is unknown as soon as one part of it is.
    SELECT run_id,
        CASE WHEN count(input_tokens) = count(*) THEN sum(input_tokens) END AS input_tokens,
        CASE WHEN count(output_tokens) = count(*) THEN sum(output_tokens) END AS output_tokens,
        CASE WHEN count(cached_input_tokens) = count(*) THEN sum(cached_input_tokens) END AS cached_input_tokens,
        CASE WHEN count(total_tokens) = count(*) THEN sum(total_tokens) END AS total_tokens,
        CASE WHEN count(cost_usd) = count(*) THEN {known_cost} END AS cost_usd,
        {known_cost} AS known_cost_usd,
        count(*) - count(cost_usd) AS costs_unknown
    FROM trace_spend GROUP BY run_id
)
SELECT id AS run_id, workflow_name, status, started_at, completed_at, {duration} AS duration_s, error,
    coalesce(attempts, 0) AS attempts, coalesce(retries, 0) AS retries, coalesce(failed_attempts, 0) AS failed_attempts,
    coalesce(open_gates, 0) AS open_gates, coalesce(calls, 0) AS calls, coalesce(tool_calls, 0) AS tool_calls,
    coalesce(tool_errors, 0) AS tool_errors, input_tokens, output_tokens, cached_input_tokens, total_tokens,
    cost_usd, known_cost_usd, coalesce(costs_unknown, 0) AS costs_unknown
FROM trace_run
LEFT JOIN attempts ON attempts.run_id = trace_run.id
LEFT JOIN gates ON gates.run_id = trace_run.id
LEFT JOIN calls ON calls.run_id = trace_run.id
LEFT JOIN spend ON spend.run_id = trace_run.id
"""


def counted_costs(dialect: Dialect, costs: str) -> str:
    """Give FROM and WHERE of the costs that count, out of ``costs``: a table of costs or a query of one, with an alias.

    All costs of a conversation have to be among them.
    """
    return _COUNTED.format(
        costs=costs,
        has_deltas=dialect.any_true.format("measurement_kind = 'delta'"),
        is_covered=dialect.any_true.format("coalesce(scope = 'conversation', false)"),
    )


def view_queries(dialect: Dialect) -> dict[str, str]:
    """Give each view's name and query, in the order in which they can be made from the tables of the kinds."""
    known_cost = dialect.total.format("cost_usd", "cost_id")
    duration = dialect.seconds.format("started_at", "completed_at")
    waited = f"CASE WHEN gate_kind = 'human' THEN {dialect.seconds.format('opened_at', 'resolved_at')} END"
    queries = {
        "trace_spend": _SPEND.rstrip("\n").format(day=dialect.utc_day.format("spent_at"))
        + counted_costs(dialect, "trace_cost"),
        "trace_attempts": _ATTEMPTS.format(
            waited=dialect.total.format(waited, "id"), known_cost=known_cost, duration=duration
        ),
        "trace_runs": _RUNS.format(known_cost=known_cost, duration=duration),
    }
    return {name: query + dialect.settings for name, query in queries.items()}
