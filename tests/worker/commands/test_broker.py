"""Times and tables of the commands that talk to a broker."""

import time

import click
import pytest

from worker.commands.broker import echo_table, time_text, time_window

NOVEMBER_3 = 1_793_664_000_000


def test_days_times_and_offsets_mean_the_same_as_elsewhere() -> None:
    assert time_window("2026-11-03", "2026-11-03") == (NOVEMBER_3, NOVEMBER_3 + 86_400_000)
    assert time_window("2026-11-03T01:00", None).since_ms == NOVEMBER_3 + 3_600_000
    assert time_window("2026-11-03T01:00:00.25+01:00", None).since_ms == NOVEMBER_3 + 250


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2h", 7200), ("7d", 604_800), ("1w", 604_800)])
def test_a_duration_is_so_long_ago(text: str, seconds: int) -> None:
    before_ms = int(time.time() * 1000)
    since_ms = time_window(text, None).since_ms
    assert since_ms is not None
    assert before_ms <= since_ms + seconds * 1000 <= time.time() * 1000


@pytest.mark.parametrize(("since", "until", "words"), [("soon", None, "--since is no"), ("1h", "2h", "nothing lies")])
def test_a_wrong_time_is_named(since: str, until: str | None, words: str) -> None:
    with pytest.raises(click.UsageError, match=words):
        time_window(since, until)


def test_a_window_holds_its_start_and_not_its_end() -> None:
    window = time_window("2026-11-03", "2026-11-03")
    assert [window.holds(NOVEMBER_3 + add) for add in (-1, 0, 86_399_999, 86_400_000)] == [False, True, True, False]


def test_a_message_without_a_time_has_none() -> None:
    assert time_text(-1) == "-"
    assert time_text(NOVEMBER_3) == "2026-11-03T00:00:00Z"


def test_columns_are_as_wide_as_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(("name", "count"), [("a long name", 1_234), ("b", 5)], numbers=("count",))
    assert capsys.readouterr().out.splitlines() == [
        "name         count",
        "a long name  1,234",
        "b                5",
    ]
