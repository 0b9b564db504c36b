"""Structured logs of a closed set of fields, so that no id, key, path or content can get into a line.

Records are named by kind, topic, partition and offset. An exception is named by its class and by where it was raised:
its text may quote a message, a row or a URL. Lines of libraries keep their template and lose their arguments.
"""

import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Literal, TextIO

import orjson
import structlog

LogFormat = Literal["json", "console"]

# Whatever is logged is one of these; a new field is a decision about what may leave the process.
FIELDS = frozenset(
    {
        # structlog's own
        "event", "level", "timestamp", "logger",
        # where something happened
        "app_id", "generation", "serving", "role", "roles", "export", "source", "topic", "topics", "partition",
        "partitions", "offset", "first_offset", "last_offset", "next_offset", "kind", "host", "port",
        # what happened, in bounded words
        "reason", "error", "raised_at", "fencing", "signal", "problem", "way_out",
        # how much
        "count", "messages", "facts", "records", "bytes", "failures", "retry", "delay_s", "duration_s",
        "dropped_fields",
    }
)  # fmt: skip

_RAISED_AT_FRAMES = 3
_REPETITION_S = 10.0
_stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)


def configure_logs(log_format: LogFormat, log_level: str, stream: TextIO | None = None) -> None:
    """Send this program's lines, and warnings of its libraries, to standard error (or a stream) in one format."""
    level = logging.getLevelNamesMapping()[log_level.upper()]
    # Libraries tell at "info" what only their developers need; they get a voice from "warning" up.
    library_level = logging.DEBUG if level <= logging.DEBUG else max(level, logging.WARNING)
    renderer = _renderer(log_format)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LibraryFormatter(renderer))
    handler.addFilter(_Repetitions())
    # A line that cannot be formatted would be printed with all its arguments.
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(library_level)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _stamp,
            keep_known_fields,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=False,
    )


def keep_known_fields(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Drop every field that is not in the closed set; a structlog processor."""
    unknown = [name for name in event if name not in FIELDS]
    for name in unknown:
        del event[name]
    if unknown:
        event["dropped_fields"] = len(unknown)
    return event


def error_fields(error: BaseException) -> dict[str, str]:
    """Name an exception for a log line: its class, and the innermost places it came through; never its text."""
    frames = traceback.extract_tb(error.__traceback__)[-_RAISED_AT_FRAMES:]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return {"error": type(error).__name__, "raised_at": places}


def _renderer(log_format: LogFormat) -> structlog.typing.Processor:
    if log_format == "json":
        return structlog.processors.JSONRenderer(serializer=_dumps)
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())


def _dumps(event: Any, **_options: Any) -> str:
    return orjson.dumps(event, default=str).decode()


class _Repetitions(logging.Filter):
    """Lets one line of a library through per while, and counts the others of its template.

    Without a broker, aiokafka tells of it a hundred times a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed_at: dict[tuple[str, str], float] = {}
        self._withheld: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.name, _template(record)
        now = time.monotonic()
        if now - self._passed_at.get(line, -_REPETITION_S) < _REPETITION_S:
            self._withheld[line] += 1
            return False
        self._passed_at[line] = now
        record.repeated = self._withheld.pop(line, 0)
        return True


class _LibraryFormatter(logging.Formatter):
    """Renders a record of the standard library's logging: template without arguments, exception without text."""

    def __init__(self, renderer: structlog.typing.Processor) -> None:
        super().__init__()
        self._renderer = renderer

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "event": _template(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        _stamp(None, "", event)
        if repeated := getattr(record, "repeated", 0):
            event["repeated"] = repeated
        if record.exc_info and record.exc_info[1] is not None:
            event |= error_fields(record.exc_info[1])
        rendered = self._renderer(None, record.levelname.lower(), event)
        assert isinstance(rendered, str)
        return rendered


def _template(record: logging.LogRecord) -> str:
    # Libraries also put texts together themselves (asyncio adds lines with the task and its exception), and only a
    # plain sentence is known to hold nothing of ours.
    first_line = record.msg.partition("\n")[0] if isinstance(record.msg, str) else ""
    is_plain = bool(record.args) or not any(letter.isdigit() or letter in "'\"`{}[]/=" for letter in first_line)
    return first_line if first_line and is_plain else "library message withheld"
