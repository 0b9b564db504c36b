"""Checks of the sinks of exports, from outside: nothing is opened for writing, made or migrated.

A sink that only shows its policy when it is opened (a Kafka topic, an OTLP receiver) is asked whether it answers.
"""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from worker.doctor.findings import Finding, error, warning
from worker.doctor.machine import check_disk
from worker.export_policy import policy_for
from worker.reachable import is_listening
from worker.settings import Settings
from worker.settings_sections import ExportSettings, SettingsError
from worker.sink import SinkBusy, SinkFailed, SinkRefused, open_sink, split_sink_url
from worker.sink_place import place_word
from worker.sink_setup import configure_sink
from worker.sink_switch import beside, can_be_switched, policy_of

_FILES: Final = frozenset({"delta", "duckdb", "jsonl", "parquet"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


async def check_sinks(settings: Settings, serving: int) -> list[Finding]:
    """Check every export's sink, at the place that it has while a generation serves."""
    found = list(_check_shared(settings))
    for export in settings.exports:
        try:
            scheme, location = split_sink_url(export.sink)
            sink = open_sink(export.sink, "")
            configure_sink(sink, settings, export)
            url = export.sink
            if can_be_switched(url) and serving != settings.generation:
                url = beside(url, place_word(settings.generation))
        except SinkRefused as problem:
            found.append(_refused("sink_url", export, problem, "correct sink in the settings"))
            continue
        except SettingsError as problem:
            found.append(error("sink_settings", _named(export), str(problem), "correct the export's settings"))
            continue
        if scheme in _FILES and "://" not in location:
            found += _check_place(export, Path(split_sink_url(url)[1]))
        if not sink.is_durable:
            fix = "set sink to one that lasts, such as duckdb:traces.duckdb"
            found.append(warning("sink_forgets", _named(export), f"a {scheme}: sink keeps nothing", fix))
        found += await _check_content(settings, export, url)
    return found


def _named(export: ExportSettings) -> str:
    return f"export {export.name}"


def _refused(code: str, export: ExportSettings, problem: Exception, fix: str) -> Finding:
    """Make a finding of what a sink says; a driver's own words may be several lines."""
    text = " ".join(str(problem).split())
    if isinstance(problem, OSError):
        text = problem.strerror or type(problem).__name__
    _, is_missing, driver = text.partition("install trace-projector[")
    return error(code, _named(export), text, f"pip install 'trace-projector[{driver}'" if is_missing else fix)


def _check_shared(settings: Settings) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for export in settings.exports:
        other = first.setdefault(export.sink, export.name)
        if other != export.name:
            problem = f"it writes where export {other} writes"
            yield error("sink_shared", _named(export), problem, "give each export a sink of its own")


def _check_place(export: ExportSettings, path: Path) -> Iterator[Finding]:
    directory = path.absolute().parent
    about = _named(export)
    if not directory.is_dir():
        fix = f"install -d -m 0700 {directory}, or correct sink in the settings"
        yield error("sink_directory", about, f"there is no directory {directory}", fix)
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        fix = f'chown "$(id -un)" {directory} && chmod u+rwx {directory}, or name another place in sink'
        yield error("sink_directory", about, f"this user may not write in {directory}", fix)
    elif path.exists() and not os.access(path, os.R_OK | os.W_OK):
        yield error("sink_file", about, f"this user may not write {path}", f'chown "$(id -un)" {path}')
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    if not export.redact and mode & (stat.S_IRWXG | stat.S_IRWXO):
        problem = f"{path} holds records that are not redacted, and others may read it (mode {mode:04o})"
        yield warning("sink_file_mode", about, problem, f"chmod go= {path}")
    yield from check_disk(about, directory)


async def _check_content(settings: Settings, export: ExportSettings, url: str) -> list[Finding]:
    about = _named(export)
    scheme, location = split_sink_url(url)
    try:
        if not can_be_switched(url):
            return await _check_answer(about, scheme, location)
        wanted = policy_for(settings, export).digest
        held = await asyncio.to_thread(policy_of, url)
    except SettingsError:
        # A key or a price table that cannot be had is told by the check of the machine.
        return []
    except SinkBusy as problem:
        # A file that is held is being written by a worker, which is as it should be.
        fix = f"start the {scheme} server, or correct sink in the settings"
        return [] if scheme in _FILES else [_refused("sink_unreachable", export, problem, fix)]
    except (SinkRefused, SinkFailed, OSError) as problem:
        return [_refused("sink_refuses", export, problem, "name another place in sink, or remove what is there")]
    if held is None or held == wanted:
        return []
    problem_text = (
        "its sink was filled under another policy (redaction, key, filter, public_repos, price table or application)"
    )
    fix = f"`trace-projector export resync {export.name}` with its workers stopped, or another name and sink"
    return [error("sink_policy", about, problem_text, fix)]


async def _check_answer(about: str, scheme: str, location: str) -> list[Finding]:
    """Look whether something listens where an OTLP receiver or another Kafka cluster should be."""
    servers: list[str] = []
    if scheme == "otlp":
        parts = urlsplit(location)
        servers = [f"{parts.hostname or ''}:{parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)}"]
    elif scheme == "kafka":
        servers = dict(parse_qsl(location.partition("?")[2])).get("bootstrap_servers", "").split(",")
    for server in filter(None, servers):
        host, _, port = server.rpartition(":")
        if await is_listening(host, port):
            return []
    fix = "start what should listen there, or correct sink in the settings"
    named = ", ".join(filter(None, servers))
    return [error("sink_unreachable", about, f"nothing listens at {named}", fix)] if named else []
