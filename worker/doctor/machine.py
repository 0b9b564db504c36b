"""Checks of the machine that the worker runs on: keys, files, directories, ports; nothing is written or created."""

import errno
import os
import shutil
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from worker.doctor.findings import Finding, error, warning
from worker.price_file import estimate_prices
from worker.settings import KEY_BYTES_RECOMMENDED, Settings
from worker.settings_sections import ExportSettings, SettingsError

DISK_FREE_BYTES_MIN: Final = 1024**3
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_ANSWER_TIMEOUT_S: Final = 5.0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Check everything that needs neither a broker nor a sink."""
    for export in settings.exports:
        yield from _check_key(export)
        yield from _check_prices(settings, export)
    yield from check_tls_files(settings)
    yield from _check_state_dir(settings)
    yield from _check_port(settings)


# --------------------------------------------------------------------------------------------------------------- keys


def _check_key(export: ExportSettings) -> Iterator[Finding]:
    about = f"export {export.name}"
    if export.redact:
        make = f"`openssl rand -hex 32 > {export.key_file}`" if export.key_file else f"${export.key_env} in its place"
        try:
            key = export.load_key()
        except SettingsError as problem:
            yield error(
                "key_missing", about, str(problem), f"make one: {make} (and keep it: a new key is a new export)"
            )
        else:
            if len(key) < KEY_BYTES_RECOMMENDED:
                yield warning(
                    "key_short",
                    about,
                    f"its digest key has {len(key)} bytes, fewer than {KEY_BYTES_RECOMMENDED}: a key that can be "
                    "guessed undoes every digest",
                    f"make a new one (`openssl rand -hex 32`), then `trace-projector export resync {export.name}`",
                )
    try:
        export.load_headers()
    except SettingsError as problem:
        yield error("headers_missing", about, str(problem), "set what headers_env or headers_file names")
    for name, file in (("key_file", export.key_file), ("headers_file", export.headers_file)):
        if file is not None:
            yield from _check_secret_file(f"{about}: {name}", file)


def _check_prices(settings: Settings, export: ExportSettings) -> Iterator[Finding]:
    try:
        estimate_prices(settings, export)
    except SettingsError as problem:
        yield error("prices", f"export {export.name}", str(problem), "correct the file, or the setting prices_file")


def check_tls_files(settings: Settings) -> Iterator[Finding]:
    """Check the files that a connection to the brokers needs."""
    kafka = settings.kafka
    for name in ("ssl_ca_file", "ssl_cert_file", "ssl_key_file"):
        file: Path | None = getattr(kafka, name)
        if file is None or not kafka.security_protocol.endswith("SSL"):
            continue
        if not os.access(file, os.R_OK):
            problem = f"{file} is not there or cannot be read"
            yield error("tls_file", f"kafka.{name}", problem, f"set kafka.{name} to a PEM file that this user may read")
        elif name == "ssl_key_file":
            yield from _check_secret_file(f"kafka.{name}", file)


def _check_secret_file(about: str, file: Path) -> Iterator[Finding]:
    mode = _mode_of(file)
    if mode is not None and mode & _OTHERS:
        problem = f"{file} may be read by others than its owner (mode {mode:04o})"
        yield warning("secret_file_mode", about, problem, f"chmod 600 {file}")


def _mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


# -------------------------------------------------------------------------------------------------------- directories


def _check_state_dir(settings: Settings) -> Iterator[Finding]:
    directory = settings.state_dir
    if directory is None or "fold" not in settings.roles:
        return
    # What is missing is made by the worker, below the nearest directory that is there.
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        problem = f"this user may not write in {there}"
        fix = f'install -d -m 0700 -o "$(id -un)" {directory}, or name another directory in state_dir'
        yield error("state_dir", "state_dir", problem, fix)
        return
    mode = _mode_of(directory)
    if mode is not None and mode & _OTHERS:
        problem = f"{directory} holds records that are not redacted, and others may look into it (mode {mode:04o})"
        yield warning("state_dir_mode", "state_dir", problem, f"chmod 700 {directory}")
    yield from check_disk("state_dir", there)


def check_disk(about: str, directory: Path) -> Iterator[Finding]:
    """Check that a directory's file system has room."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        yield error("disk", about, f"{directory}: {reason}", f"see to the file system: df -h {directory}")
        return
    if free < DISK_FREE_BYTES_MIN:
        problem_text = f"{free // 1024**2:,} MiB are free on the file system of {directory}"
        yield warning("disk_full", about, problem_text, f"make room (df -h {directory}), or move it to another disk")


# -------------------------------------------------------------------------------------------------------------- ports


def _check_port(settings: Settings) -> Iterator[Finding]:
    place = f"{settings.web_host}:{settings.web_port}"
    elsewhere = "set web_port (TRACE_PROJECTOR_WEB_PORT) to a free one"
    family = socket.AF_INET6 if ":" in settings.web_host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the server itself does: a port that a worker has just let go of is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.web_host, settings.web_port))
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            if problem.errno != errno.EADDRINUSE:
                yield error("web_port", place, f"no pages can be served there: {reason}", f"{elsewhere}, or web_host")
            elif not _is_worker(settings):
                who = f"`ss -ltnp 'sport = :{settings.web_port}'` says who"
                yield error("web_port", place, "another program listens there", f"{elsewhere}; {who}")


def _is_worker(settings: Settings) -> bool:
    host = settings.web_host if settings.web_host not in ("0.0.0.0", "::") else "localhost"  # noqa: S104
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{settings.web_port}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_TIMEOUT_S) as response:
            answer = orjson.loads(response.read(_ANSWER_BYTES_MAX))
    except (urllib.error.URLError, OSError, ValueError):
        return False
    return isinstance(answer, dict) and "live" in answer
