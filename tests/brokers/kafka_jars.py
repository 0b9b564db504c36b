"""Kafka's jars and the Java that runs them."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.brokers.broker import BrokerUnavailableError, cache_directory

KAFKA_VERSION = "4.1.1"

_HERE = Path(__file__).parent
_JAVA_VERSION_MIN = 17
_FETCH_TIMEOUT_S = 600
# Test brokers live for minutes: the quick compiler and the plain collector start sooner and spare the cores.
_JAVA_OPTIONS = ("-Xms128m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def java_program() -> str:
    """Return the Java to use: JAVA_HOME's or the one on PATH, 17 or later.

    Raises:
        BrokerUnavailableError: there is none, or it is older.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if program is None:
        raise BrokerUnavailableError(f"no java in JAVA_HOME or on PATH; Apache Kafka needs Java {_JAVA_VERSION_MIN}")
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _JAVA_VERSION_MIN:
        raise BrokerUnavailableError(f"{program} is not Java {_JAVA_VERSION_MIN} or later")
    return program


def fetch_jars() -> Path:
    """Return the directory of Kafka's jars, fetched from Maven Central when they are not there yet.

    Raises:
        BrokerUnavailableError: they are not there and Maven is missing or could not fetch them.
    """
    jars = cache_directory() / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailableError("no mvn on PATH to fetch Apache Kafka's jars")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="kafka-") as scratch:
        # fmt: off
        command = [
            maven, "-B", "-q", "--strict-checksums", "-f", str(_HERE / "pom.xml"),
            f"-Dkafka.version={KAFKA_VERSION}",
            "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={scratch}/jars",
        ]
        # fmt: on
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S)
        except subprocess.SubprocessError as error:
            told = getattr(error, "stdout", None) or ""
            raise BrokerUnavailableError(f"mvn could not fetch Apache Kafka's jars: {told[-1_000:]}") from error
        # Whoever else fetched them meanwhile has the same files.
        with contextlib.suppress(OSError):
            Path(scratch, "jars").rename(jars)
    return jars


def java_command() -> list[str]:
    """Return the start of a command line that runs a class of Kafka's jars."""
    logging = f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}"
    return [java_program(), *_JAVA_OPTIONS, logging, "-cp", f"{fetch_jars()}/*"]
