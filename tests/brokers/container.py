"""Apache Kafka in a container, by testcontainers: the official image or one that takes the same variables."""

import contextlib
import os
from collections.abc import Callable

import docker
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from tests.brokers.apache_kafka import cluster_settings
from tests.brokers.broker import LOOPBACK, Broker, BrokerUnavailableError, free_ports, wait_until_answers
from tests.brokers.kafka_jars import KAFKA_VERSION

IMAGE_VARIABLE = "TEST_KAFKA_IMAGE"
IMAGE_DEFAULT = f"apache/kafka:{KAFKA_VERSION}"

_CLIENT_PORT = 9092
_CONTROLLER_PORT = 9093
_INTERNAL_PORT = 9094
_ENGINE_TIMEOUT_S = 60
_START_TIMEOUT_S = 60.0


def start_container() -> Broker:
    """Start one node in a container, its port published on the loopback address only.

    Raises:
        BrokerUnavailableError: no Docker engine answers, the image cannot be had, or Kafka did not come up.
    """
    image = os.environ.get(IMAGE_VARIABLE, IMAGE_DEFAULT)
    _provide_image(image)
    # The reaper is a second image to pull; the session stops its container itself.
    testcontainers_config.ryuk_disabled = True
    port = free_ports(1)[0]
    container = DockerContainer(image).with_envs(**_variables(port))
    # with_bind_ports knows no address and would publish the port on all of them.
    container.ports[f"{_CLIENT_PORT}/tcp"] = (LOOPBACK, port)  # type: ignore[assignment]
    address = f"{LOOPBACK}:{port}"
    with contextlib.ExitStack() as undo:
        undo.callback(container.stop)
        try:
            container.start()
        except DockerException as error:
            raise BrokerUnavailableError(f"the Docker engine could not start {image}: {error}") from error
        if not wait_until_answers(address, timeout_s=_START_TIMEOUT_S, is_running=_alive(container)):
            told = b"".join(container.get_logs()).decode("utf-8", "replace")[-4_096:]
            raise BrokerUnavailableError(f"Kafka in {image} did not start; the end of its log:\n{told}")
        undo.pop_all()
    return Broker(
        name=f"Apache Kafka in a container of {image}",
        bootstrap_servers=address,
        supports_transactions=True,
        stop=container.stop,
    )


def _provide_image(image: str) -> None:
    try:
        engine = docker.from_env(timeout=_ENGINE_TIMEOUT_S)
        engine.ping()
    except DockerException as error:
        raise BrokerUnavailableError("no Docker engine answers") from error
    with contextlib.closing(engine):
        try:
            engine.images.get(image)
        except ImageNotFound:
            _pull(engine, image)


def _pull(engine: docker.DockerClient, image: str) -> None:
    try:
        engine.images.pull(image)
    except (DockerException, OSError) as error:
        raise BrokerUnavailableError(f"the Docker engine has no image {image} and cannot pull it: {error}") from error


def _variables(port: int) -> dict[str, str]:
    settings = cluster_settings(1) | {
        "node.id": "1",
        "controller.quorum.voters": f"1@localhost:{_CONTROLLER_PORT}",
        # The broker calls itself (it asks its transaction coordinator), and inside the container the published port
        # does not exist: without a listener of its own for that, every transaction waits for ever.
        "listeners": (
            f"PLAINTEXT://:{_CLIENT_PORT},INTERNAL://localhost:{_INTERNAL_PORT},"
            f"CONTROLLER://localhost:{_CONTROLLER_PORT}"
        ),
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port},INTERNAL://localhost:{_INTERNAL_PORT}",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
    }
    return {"KAFKA_" + name.upper().replace(".", "_"): value for name, value in settings.items()}


def _alive(container: DockerContainer) -> Callable[[], bool]:
    def is_running() -> bool:
        container.reload()
        return container.status == "running"

    return is_running
