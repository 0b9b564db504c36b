"""Gate records of policy decisions."""

import pytest

from projections.errors import ProjectionError
from projections.policy_gates import policy_gate_record, table_version_number
from projections.records import parse_trace_record

AT = "2026-03-19T10:00:00.000Z"


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("2.0.0-rc.1", 2),
        (" 7.1", 7),
        ("\ufeff3", 3),
        ("10", 10),
        ("007", 7),
        ("v2", 0),
        ("main", 0),
        ("", 0),
        ("-1", 0),
        ("٣", 0),
        ("9007199254740991", 9007199254740991),
        ("9007199254740992", 0),
        ("1" * 5_000, 0),
    ],
)
def test_the_version_of_a_table_is_its_leading_integer(version: str, number: int) -> None:
    assert table_version_number(version) == number


def test_a_decision_becomes_a_record_that_the_strict_parse_takes_unchanged() -> None:
    outcome = {"verdict": "refused", "ruleId": "a b", "reason": "no", "gateId": "run/x"}
    record = policy_gate_record("run", "merge:0", 1, outcome, table_version="2.1.0", at=AT)
    assert parse_trace_record(record) == record
    assert list(parse_trace_record(record)) == list(record)
    assert record["id"] == "workflow:run:merge%3A0:1:0#policy:F5:a%20b"
    assert (record["verdict"], record["reason"]) == (None, "no")


@pytest.mark.parametrize("verdict", ["revise", "", None, ["allow"]])
def test_an_unknown_verdict_is_refused_by_field(verdict: object) -> None:
    with pytest.raises(ProjectionError) as caught:
        policy_gate_record("run", "s", 0, {"verdict": verdict, "ruleId": "r"}, table_version="1", at=AT)
    assert (caught.value.reason, caught.value.field) == ("invalid_field", "verdict")


def test_a_blank_rule_is_refused_and_a_missing_one_has_its_own_row() -> None:
    with pytest.raises(ProjectionError, match="blank_component"):
        policy_gate_record("run", "s", 0, {"verdict": "deny", "ruleId": " "}, table_version="1", at=AT)
    record = policy_gate_record("run", "s", 0, {"verdict": "deny"}, table_version="1", at=AT)
    assert record["policyRule"]["rowId"] == "no-rule"
