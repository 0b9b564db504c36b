"""What a log line may hold, and what never gets into one."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from worker.logs import FIELDS, configure_logs, error_fields

SECRET = "ZZSECRETZZ"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, is_loud = list(root.handlers), root.level, logging.raiseExceptions
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = is_loud


def parsed(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def failure() -> Exception:
    try:
        int(SECRET)
    except ValueError as error:
        return error
    raise AssertionError("that was a number")


def test_a_line_of_ours_is_one_json_object_with_its_fields(lines: io.StringIO) -> None:
    structlog.get_logger().info("assigned", partitions=3, role="fold")
    [line] = parsed(lines)
    assert (line["event"], line["level"], line["partitions"], line["role"]) == ("assigned", "info", 3, "fold")
    assert line["timestamp"].endswith("Z")


def test_a_field_outside_the_closed_set_is_dropped_and_counted(lines: io.StringIO) -> None:
    structlog.get_logger().info("assigned", path=SECRET, key=SECRET, role="fold")
    [line] = parsed(lines)
    assert line["dropped_fields"] == 2
    assert SECRET not in lines.getvalue()
    assert not {"path", "key", "id", "record", "value", "url"} & FIELDS


def test_an_exception_is_named_by_class_and_place_and_never_by_its_text(lines: io.StringIO) -> None:
    structlog.get_logger().warning("retrying", **error_fields(failure()))
    [line] = parsed(lines)
    assert line["error"] == "ValueError"
    assert line["raised_at"].startswith("test_logs.py:")
    assert SECRET not in lines.getvalue()


@pytest.mark.parametrize(
    ("message", "arguments", "event"),
    [
        ("Sending (key=%s value=%s) to %s", (SECRET, SECRET, "topic"), "Sending (key=%s value=%s) to %s"),
        ("Heartbeat session expired", (), "Heartbeat session expired"),
        (f"No record for '{SECRET}'", (), "library message withheld"),
        (f"Task exception was never retrieved\nfuture: <Task {SECRET}>", (), "Task exception was never retrieved"),
        (ValueError(SECRET), (), "library message withheld"),
    ],
)
def test_a_line_of_a_library_keeps_its_template_and_loses_what_was_put_into_it(
    lines: io.StringIO, message: Any, arguments: tuple[str, ...], event: str
) -> None:
    logging.getLogger("aiokafka").warning(message, *arguments)
    [line] = parsed(lines)
    assert line["event"] == event
    assert line["logger"] == "aiokafka"
    assert SECRET not in lines.getvalue()


def test_an_exception_that_a_library_logs_loses_its_text(lines: io.StringIO) -> None:
    logging.getLogger("mode").error("Crashed reason=%r", failure(), exc_info=failure())
    [line] = parsed(lines)
    assert line["error"] == "ValueError"
    assert SECRET not in lines.getvalue()


def test_a_library_that_repeats_itself_is_heard_once_in_a_while_and_the_rest_is_counted(
    lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("worker.logs.time.monotonic", lambda: clock[0])
    for second in range(25):
        clock[0] = 100.0 + second
        logging.getLogger("aiokafka").error("Unable connect to node with id %s: %s", 1, SECRET)
    logging.getLogger("aiokafka").error("Another line")
    assert [(line["event"][:6], line.get("repeated", 0)) for line in parsed(lines)] == [
        ("Unable", 0),
        ("Unable", 9),
        ("Unable", 9),
        ("Anothe", 0),
    ]


def test_a_line_that_cannot_be_formatted_is_not_printed_with_its_arguments(
    lines: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    record = logging.makeLogRecord({"msg": "text %s", "args": (SECRET,), "exc_info": (1,), "levelno": logging.ERROR})
    logging.getLogger("aiokafka").handle(record)
    logging.getLogger("aiokafka").error("no exception here", exc_info=False)
    assert "no exception here" in lines.getvalue()
    assert SECRET not in lines.getvalue() + capsys.readouterr().err


def test_libraries_are_heard_from_warning_up(lines: io.StringIO) -> None:
    logging.getLogger("aiokafka").info("Joined group")
    assert lines.getvalue() == ""


def test_console_lines_hold_the_same_and_no_more() -> None:
    stream = io.StringIO()
    configure_logs("console", "warning", stream)
    structlog.get_logger().info("assigned")
    structlog.get_logger().warning("retrying", role="fold", path=SECRET)
    structlog.reset_defaults()
    assert "assigned" not in stream.getvalue()
    assert "retrying" in stream.getvalue()
    assert SECRET not in stream.getvalue()
