"""A person's questions, as docs/querying.md asks them, have the same answers in every destination with SQL."""

import json
import re
from datetime import date
from typing import Any

import pytest

from tests.docs.pages import DOCS, queries, section
from tests.worker.sinks.destinations import DESTINATIONS, REPOSITORY, SqlDestination, upsert

WITH_SQL = [name for name, destination in DESTINATIONS.items() if issubclass(destination, SqlDestination)]
RUNS = ("demo", "doc-run", "retries")
PAGE = DOCS / "querying.md"

FAILED, SPENT, TOOLS, GATES, RETRIES = range(5)
BUG_FIX = "0ac95d7c-0625-595e-9516-d3c2526a026c"
RETRIED = ("run-retries", "fix-bug", "synthetic: verify failed")

ANSWERS: dict[int, list[tuple[Any, ...]]] = {
    FAILED: [
        (*RETRIED, "implement", 0, 0, "synthetic: harness exited with 1"),
        (*RETRIED, "verify", 0, 0, "synthetic: no runner came up"),
        (*RETRIED, "verify", 0, 1, "synthetic: the tests are red"),
        (BUG_FIX, "bug-fix", "fix: 2 attempts failed", "fix", 0, 0, "tests failed"),
        (BUG_FIX, "bug-fix", "fix: 2 attempts failed", "fix", 0, 1, "tests failed again"),
    ],
    SPENT: [
        (date(2026, 9, 14), "claude-haiku-4-5", 40, 12, None, 1, 0),
        (date(2026, 9, 14), "claude-sonnet-5", 13_050, 655, None, 3, 0),
        (date(2026, 9, 28), "claude-sonnet-5", 10_300, 2_700, 0.35, 0, 0),
        (date(2026, 11, 3), "claude-haiku-4-5-20251001", 8_367, 197, None, 2, 0),
        (date(2026, 11, 3), "claude-opus-4-5-20251101", 24_927, 414, None, 2, 0),
        (date(2026, 11, 3), "claude-sonnet-4-5-20250929", 125_755, 4_550, None, 15, 0),
    ],
    TOOLS: [
        ("Bash", 5, 3, 0.75),
        ("Edit", 5, 0, 0),
        ("Grep", 1, 0, 0),
        ("Read", 1, 0, 0),
        ("Task", 1, 0, 0),
        ("Write", 3, 1, 0.333333),
        ("mcp__linkcheck__check_page", 1, 0, 0),
    ],
    GATES: [("bug-fix", 1, 0, 1_800, 1_800), ("doc-change", 4, 0, 858.1625, 1_277.9), ("release", 1, 1, None, None)],
    RETRIES: [
        ("doc-change", "draft", 6, 2),
        ("bug-fix", "fix", 2, 1),
        ("fix-bug", "implement", 2, 1),
        ("fix-bug", "verify", 2, 1),
        ("bug-fix", "investigate", 2, 0),
        ("doc-change", "load-task", 2, 0),
        ("doc-change", "merge-authorize", 1, 0),
        ("doc-change", "open-pr", 2, 0),
        ("doc-change", "owner-review", 4, 0),
        ("release", "collect", 1, 0),
        ("release", "notes", 1, 0),
    ],
}


def questions(title: str = "Questions") -> list[str]:
    """The queries of a section of the page, in its order."""
    found = re.findall(r"^```sql\n(.*?)^```$", section(PAGE, title), re.DOTALL | re.MULTILINE)
    return [query for block in found for query in queries(block)]


@pytest.fixture(scope="module", params=WITH_SQL)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SqlDestination:
    destination = DESTINATIONS[request.param](tmp_path_factory.mktemp("questions"))
    assert isinstance(destination, SqlDestination)
    lines = [
        line
        for name in RUNS
        for line in (REPOSITORY / "fixtures" / "runs" / name / "trace.jsonl").read_bytes().splitlines()
    ]
    destination.write([upsert(json.loads(line), n, json_bytes=line) for n, line in enumerate(lines)])
    return destination


def in_numbers(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with sums and means as doubles, whatever type a database has for them."""
    is_exact = (str, date, bool, type(None))
    return [tuple(value if isinstance(value, is_exact) else round(float(value), 6) for value in row) for row in rows]


@pytest.mark.parametrize("question", ANSWERS, ids=["failed", "spent", "tools", "gates", "retries"])
def test_a_question_has_the_known_answer(question: int, store: SqlDestination) -> None:
    assert in_numbers(store.query(store.said(questions()[question]))) == ANSWERS[question]


def test_every_question_of_the_page_is_asked_here() -> None:
    assert len(questions()) == len(ANSWERS)


def test_every_other_query_of_the_page_is_answered(store: SqlDestination) -> None:
    asked = questions("Tables and views")
    assert asked
    for query in asked:
        # The page asks about a run of its own sample.
        assert store.query(store.said(query.replace("'run-7'", f"'{BUG_FIX}'"))), query


def test_what_a_destination_says_differently_stands_on_the_page(store: SqlDestination) -> None:
    told = " ".join(section(PAGE, "Questions").split())
    for theirs, ours in store.says.items():
        assert f"`{ours}` where they say `{theirs}`" in told or f"`{ours}` for `{theirs}`" in told
