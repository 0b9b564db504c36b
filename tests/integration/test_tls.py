"""A worker and a broker that speak TLS and ask for a password; what is wrong is told, and the secret is not."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.brokers.apache_kafka import KafkaCluster
from tests.brokers.broker import LOOPBACK, Broker
from tests.integration.commands import Commands
from tests.integration.pipeline import KEY, KEY_VARIABLE, Pipeline, worlds
from tests.integration.test_worker import assert_same_as_file_mode, run_until_it_ends

pytestmark = pytest.mark.integration

USER, PASSWORD = "worker", "ZZPASSWORDZZ-of-the-worker"
_STORE_PASSWORD = "changeit"


class Secured(NamedTuple):
    """A broker with a plain and a secured listener, the certificate that signed its own, and one that did not."""

    cluster: KafkaCluster
    ca_file: Path
    other_ca_file: Path


def keytool(store: Path, *arguments: str) -> None:
    program = shutil.which("keytool")
    assert program is not None, "keytool comes with the Java that runs the broker"
    # It runs for a moment: the quick compiler and the plain collector spare half of it.
    quick = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
    command = [
        program,
        *quick,
        *arguments,
        "-keystore",
        str(store),
        "-storetype",
        "PKCS12",
        "-storepass",
        _STORE_PASSWORD,
    ]
    subprocess.run(command, check=True, capture_output=True)


_MAKE = ("-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "2")


def make_authority(directory: Path) -> tuple[Path, Path]:
    """Make a key store with a certificate that may sign others, and give it and the certificate."""
    directory.mkdir()
    store, ca_file = directory / "broker.p12", directory / "ca.pem"
    keytool(
        store, *_MAKE, "-alias", "ca", "-dname", "CN=test authority", "-ext", "bc:c=ca:true", "-ext", "ku=keyCertSign"
    )
    keytool(store, "-exportcert", "-rfc", "-alias", "ca", "-file", str(ca_file))
    return store, ca_file


def certify_broker(store: Path) -> None:
    """Put a certificate for the loopback address, signed by the authority, into a store in the authority's stead."""
    names = f"san=ip:{LOOPBACK},dns:localhost"
    keytool(store, *_MAKE, "-alias", "broker", "-dname", "CN=localhost", "-ext", names, "-signer", "ca")
    # The broker takes the first key that it finds.
    keytool(store, "-delete", "-alias", "ca")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    store, ca_file = make_authority(directory / "right")
    certify_broker(store)
    _, other_ca_file = make_authority(directory / "wrong")
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": f'{login} required user_{USER}="{PASSWORD}";',
        "ssl.keystore.location": str(store),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": _STORE_PASSWORD,
    }
    with KafkaCluster(secured=settings) as cluster:
        yield Secured(cluster, ca_file, other_ca_file)


@pytest.fixture
def pipeline(
    secured: Secured, fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipeline]:
    """Give a pipeline whose topics are made over the plain listener; its workers are to use the other."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    cluster = secured.cluster
    broker = Broker("secured", cluster.bootstrap_servers, supports_transactions=True, stop=cluster.stop)
    made = Pipeline(broker, fresh_app_id, tmp_path)
    made.write_config()
    made.create_topics()
    try:
        yield made
    finally:
        made.close()


def credentials(secured: Secured, **others: str) -> dict[str, str]:
    """Give a worker's environment for the secured listener."""
    kafka = {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SASL_USERNAME": USER,
        "SASL_PASSWORD": PASSWORD,
        "SSL_CA_FILE": str(secured.ca_file),
    } | others
    variables = {f"TRACE_PROJECTOR_KAFKA__{name}": value for name, value in kafka.items()}
    return variables | {"TRACE_PROJECTOR_BOOTSTRAP_SERVERS": secured.cluster.secured_servers}


def test_a_worker_works_over_tls_with_a_password_from_the_environment_which_it_tells_nobody(
    pipeline: Pipeline, secured: Secured, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline.publish(worlds(range(150, 152)))
    worker = pipeline.worker(**credentials(secured))
    worker.start()
    pipeline.wait_settled()
    scraped = worker.get("/metrics")[1].decode() + worker.get("/readyz")[1].decode()
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)
    for name, value in credentials(secured).items():
        monkeypatch.setenv(name, value)
    code, printed, complaints = Commands(pipeline.config, capfd).run("config")
    assert (code, "sasl_password" in printed) == (0, True)
    assert PASSWORD not in worker.log_path.read_text() + scraped + printed + complaints


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"SASL_PASSWORD": "ZZPASSWORDZZ-of-somebody-else"}, "sasl_username"),
        ({"SSL_CA_FILE": "other"}, "ssl_ca_file"),
        ({"SECURITY_PROTOCOL": "PLAINTEXT"}, "security_protocol"),
    ],
)
def test_what_is_wrong_with_the_way_to_the_broker_is_told_and_the_secret_is_not(
    pipeline: Pipeline, secured: Secured, wrong: dict[str, str], told: str
) -> None:
    if "SSL_CA_FILE" in wrong:
        wrong = {"SSL_CA_FILE": str(secured.other_ca_file)}
    code, text = run_until_it_ends(pipeline.worker(**credentials(secured, **wrong)))
    assert code == 1
    assert text.splitlines()[-1].startswith("trace-projector: ")
    assert told in text.splitlines()[-1]
    assert "ZZPASSWORDZZ" not in text
    assert "Traceback" not in text
