"""What a check of an installation finds: what is wrong, with what, how bad it is and how to mend it.

Rules for editing: a finding names settings, topics, groups, files and exports, and never a value that may be secret (a
URL of a sink, a key, a password); its ``fix`` is a command to run or a setting to change, written out.
"""

import shlex
from collections.abc import Mapping
from typing import Literal, NamedTuple

from worker.settings import Settings

Severity = Literal["error", "warning"]


class Finding(NamedTuple):
    """One thing that is wrong.

    An ``error`` keeps something from working or loses data, a ``warning`` will do so one day or lets others look in.
    ``code`` stays the same from release to release; ``about`` says which topic, group, export or setting it is.
    """

    severity: Severity
    code: str
    about: str
    problem: str
    fix: str


def error(code: str, about: str, problem: str, fix: str) -> Finding:
    """Make a finding that keeps something from working or loses data."""
    return Finding("error", code, about, problem, fix)


def warning(code: str, about: str, problem: str, fix: str) -> Finding:
    """Make a finding that will hurt one day."""
    return Finding("warning", code, about, problem, fix)


def refusal(code: str, about: str, text: str, otherwise: str) -> Finding:
    """Make an error of a refusal's own text, which ends with the way out behind its last colon, if it names one."""
    problem, colon, way_out = text.rpartition(": ")
    return error(code, about, problem, way_out) if colon else error(code, about, text, otherwise)


def kafka_tool(settings: Settings, program: str, *arguments: str) -> str:
    """Write out the call of one of Kafka's own programs for the brokers of the settings."""
    is_plain = settings.kafka.security_protocol == "PLAINTEXT"
    secured = () if is_plain else ("--command-config", "client.properties")
    return shlex.join([program, "--bootstrap-server", settings.bootstrap_servers, *secured, *arguments])


def set_on_topic(settings: Settings, topic: str, configs: Mapping[str, str]) -> str:
    """Write out the command that changes a topic's configuration."""
    added = ",".join(f"{name}={value}" for name, value in configs.items())
    what = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", added)
    return kafka_tool(settings, "kafka-configs.sh", *what)
