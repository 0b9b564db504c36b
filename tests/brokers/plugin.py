"""The fixture ``kafka``: the first kind of broker that can be had here, and a word about which it was.

The variable TEST_KAFKA asks for one kind (external, container, jars or embedded), and the tests fail where that one
cannot be had. KAFKA_BOOTSTRAP_SERVERS, when set, is always meant. The test processes of a run share one broker.
"""

import contextlib
import importlib
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.brokers.broker import Broker, BrokerUnavailableError
from tests.brokers.shared import shared_broker

KIND_VARIABLE = "TEST_KAFKA"
SERVERS_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"

# In the order of choice; a name, so that a kind's libraries load only when it is tried.
_KINDS: Mapping[str, str] = {
    "external": "tests.brokers.external:use_external",
    "container": "tests.brokers.container:start_container",
    "jars": "tests.brokers.apache_kafka:start_jars",
    "embedded": "tests.brokers.embedded:start_embedded",
}

# What this process, and with xdist its workers, used and did not use.
_TOLD = pytest.StashKey[list[str]]()


def start_broker(told: list[str]) -> Broker:
    """Start the first kind of broker that can be had, or the one asked for, and note in ``told`` what happened.

    Raises:
        BrokerUnavailableError: none can be had, or not the one asked for.
    """
    wanted = os.environ.get(KIND_VARIABLE) or ("external" if os.environ.get(SERVERS_VARIABLE) else None)
    if wanted is not None and wanted not in _KINDS:
        raise BrokerUnavailableError(f"{KIND_VARIABLE}={wanted} is none of {', '.join(_KINDS)}")
    for kind in [wanted] if wanted else _KINDS:
        module, _, function = _KINDS[kind].partition(":")
        try:
            broker: Broker = getattr(importlib.import_module(module), function)()
        except BrokerUnavailableError as error:
            told.append(f"no {kind} broker: {error}")
        else:
            told.append(f"ran on {broker.name}")
            return broker
    raise BrokerUnavailableError("; ".join(told))


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give one running broker for the whole session; topics outlive tests, so each test names its own."""
    told = pytestconfig.stash.setdefault(_TOLD, [])
    directory = tmp_path_factory.getbasetemp()
    if hasattr(pytestconfig, "workerinput"):
        # Each worker of xdist has a directory in that of the run.
        directory = directory.parent
    with contextlib.ExitStack() as used:
        try:
            broker = used.enter_context(shared_broker(directory, lambda: start_broker(told)))
        except BrokerUnavailableError as error:
            pytest.fail(f"no Kafka broker for the tests: {error}", pytrace=False)
        yield broker


@pytest.fixture
def fresh_app_id() -> str:
    """Give an ``app_id`` that no other test of this or an earlier session used."""
    return f"test-{uuid.uuid4().hex[:12]}"


def pytest_report_header() -> str:
    """Say how the broker will be chosen; it starts when a test first asks for it."""
    wanted = os.environ.get(KIND_VARIABLE)
    return f"kafka: {wanted or 'the first to be had of ' + ', '.join(_KINDS)}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what an xdist worker ran on to the process that prints the summary."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["kafka"] = session.config.stash.get(_TOLD, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what an xdist worker ran on."""
    output: dict[str, Any] = getattr(node, "workeroutput", {})
    told = node.config.stash.setdefault(_TOLD, [])
    told.extend(line for line in output.get("kafka", []) if line not in told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what ran."""
    told = terminalreporter.config.stash.get(_TOLD, [])
    if told:
        terminalreporter.section("kafka")
        for line in told:
            terminalreporter.write_line(line)
