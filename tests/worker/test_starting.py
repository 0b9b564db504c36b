"""Patience at the start: what may pass is waited for, and nothing else."""

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError, TopicAuthorizationFailedError

from worker.starting import patiently
from worker.topic_scan import BrokerFailed
from worker.topics import StartError


class Work:
    """Fails with each of some errors, one call after the other, and then gives a result."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def run(work: Work, patience_s: float = 60.0) -> str:
    return asyncio.run(patiently(work, patience_s=patience_s, pause_s=0.0))


def test_a_broker_that_changes_its_place_is_waited_for() -> None:
    refused = [caused(BrokerFailed("refused"), NodeNotReadyError()) for _ in range(5)]
    work = Work(*refused, caused(StartError("refused"), NodeNotReadyError()), TimeoutError(), NodeNotReadyError())
    assert run(work) == "done"
    assert work.calls == 9


def test_patience_ends() -> None:
    with pytest.raises(BrokerFailed):
        run(Work(*(caused(BrokerFailed("refused"), NodeNotReadyError()) for _ in range(5))), patience_s=0.0)


def test_no_broker_at_all_is_said_after_a_few_tries() -> None:
    work = Work(*(caused(StartError("no broker answers"), KafkaConnectionError()) for _ in range(9)))
    with pytest.raises(StartError, match="no broker answers"):
        run(work)
    assert work.calls == 3


@pytest.mark.parametrize(
    "error",
    [
        StartError("missing source topics"),
        caused(BrokerFailed("refused"), TopicAuthorizationFailedError()),
        ValueError(),
    ],
    ids=["missing topics", "refused for good", "a mistake of our own"],
)
def test_what_does_not_pass_by_itself_ends_the_start_at_once(error: Exception) -> None:
    work = Work(error)
    with pytest.raises(type(error)):
        run(work)
    assert work.calls == 1
