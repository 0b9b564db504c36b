"""A PostgreSQL server for tests: a cluster in a temporary directory, started when the first test wants it."""

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

USER = "tester"
PASSWORD = "ZZPASSWORDZZ"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0


class Server(NamedTuple):
    """A server that runs: where it listens on loopback, and its process."""

    port: int
    process: "subprocess.Popen[bytes]"

    def url(self, schema: str, *, port: int | None = None) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/postgres?schema={schema}"

    def connect(self, schema: str | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect as a person would who looks at what is in a schema."""
        options = None if schema is None else f"-csearch_path={schema}"
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname="postgres",
            options=options,
            autocommit=True,
        )


def is_here() -> bool:
    """Whether a server can be had; in CI it must be, so there the answer is yes and its absence a failure."""
    return _programs() is not None or bool(os.environ.get("CI"))


def server() -> Server:
    """Give the session's server; skips the test where PostgreSQL is not installed, and fails it in CI."""
    if _programs() is None:
        reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return _started()


def _programs() -> Path | None:
    """The directory of ``initdb`` and ``postgres``; Debian's is on nobody's PATH."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


@cache
def _started() -> Server:
    programs = _programs()
    assert programs is not None
    # Not under pytest's directories: the path of a socket must be short, and the server's user must get there.
    directory = Path(tempfile.mkdtemp(prefix="trace-pg-", dir="/tmp"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "password").write_text(PASSWORD)
    data = directory / "data"
    who = _user_of_servers(directory)
    subprocess.run(
        [
            programs / "initdb",
            *("--pgdata", data, "--username", USER, "--pwfile", directory / "password"),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        **who,
    )
    port = _free_port()
    options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": directory, "fsync": "off"}
    # Row changes can be read out of the log, as change capture reads them.
    options |= {"wal_level": "logical"}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **who,
        )
    # Registered last, so that it runs before the directory is removed.
    atexit.register(_stop, process)
    started = Server(port, process)
    _wait_for(started, directory / "log")
    return started


def _user_of_servers(directory: Path) -> dict[str, Any]:
    """PostgreSQL does not run as root, who gives the directory to somebody else then."""
    if os.geteuid() != 0:
        return {"cwd": directory}
    name = next(name for name in ("postgres", "nobody") if any(user.pw_name == name for user in pwd.getpwall()))
    user = pwd.getpwnam(name)
    for path in (directory, directory / "password"):
        os.chown(path, user.pw_uid, user.pw_gid)
    return {"cwd": directory, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for(started: Server, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            started.connect().close()
        except psycopg.OperationalError:
            if started.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        else:
            return


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
