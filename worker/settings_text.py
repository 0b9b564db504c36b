"""Settings as the TOML document that they could have been read from, with every secret masked."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from worker.settings import MASK, Settings, mask_url
from worker.settings_sections import ExportSettings


def describe_settings(settings: Settings) -> str:
    """Write settings as a TOML document that `--config` reads again, except for masked values and key directories."""
    return "".join(f"{line}\n" for line in _lines(settings))


def _lines(settings: Settings) -> Iterator[str]:
    sections: list[tuple[str, BaseModel]] = []
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            sections.append((name, value))
        elif name != "exports":
            yield from _line(name, value)
    for name, section in sections:
        yield ""
        yield f"[{name}]"
        for field in type(section).model_fields:
            value = getattr(section, field)
            if name == "topics" and field == "erasures":
                value = settings.source_topics["erasures"]
            yield from _line(field, value)
    for export in settings.exports:
        yield ""
        yield from _export_lines(export)


def _export_lines(export: ExportSettings) -> Iterator[str]:
    yield "[[exports]]"
    yield from _line("name", export.name)
    yield from _line("sink", mask_url(export.sink))
    yield from _line("redact", export.redact)
    yield from _line("profile", export.profile)
    yield from _line("public_repos", sorted(export.public_repos))
    yield from _line("estimate_costs", export.estimate_costs)
    for name, variable, file in (
        ("key", export.key_env, export.key_file),
        ("headers", export.headers_env, export.headers_file),
    ):
        if variable is not None:
            state = f"set: {MASK}" if os.environ.get(variable) else "not set"
            yield f"{name}_env = {_toml(variable)}  # {state}"
        if file is not None:
            yield from _line(f"{name}_file", file.name)
    if export.filter is not None:
        yield "[exports.filter]"
        for field in type(export.filter).model_fields:
            value = getattr(export.filter, field)
            yield from _line(field, sorted(value) if isinstance(value, frozenset) else value)


def _line(name: str, value: Any) -> Iterator[str]:
    # TOML has no null: a setting without a value is shown as the comment that it is.
    yield f"# {name} is not set" if value is None else f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, SecretStr):
        return _toml(MASK)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    assert isinstance(value, str | Path)
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
