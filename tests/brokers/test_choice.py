"""Which kind of broker the tests take, and that a kind asked for in vain fails."""

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.brokers import plugin
from tests.brokers.broker import Broker, BrokerUnavailableError

Offer = Callable[[dict[str, Callable[[], Broker]]], None]


def has(name: str) -> Callable[[], Broker]:
    return lambda: Broker(name, "127.0.0.1:1", supports_transactions=True, stop=lambda: None)


def lacks(reason: str) -> Callable[[], Broker]:
    def start() -> Broker:
        raise BrokerUnavailableError(reason)

    return start


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Give a function that puts other kinds of broker in the place of the real ones."""

    def replace(kinds: dict[str, Callable[[], Broker]]) -> None:
        module = ModuleType("offered_brokers")
        for kind, start in kinds.items():
            setattr(module, kind, start)
        monkeypatch.setitem(sys.modules, "offered_brokers", module)
        monkeypatch.setattr(plugin, "_KINDS", {kind: f"offered_brokers:{kind}" for kind in kinds})

    monkeypatch.delenv(plugin.KIND_VARIABLE, raising=False)
    monkeypatch.delenv(plugin.SERVERS_VARIABLE, raising=False)
    return replace


def test_the_first_kind_to_be_had_is_taken_and_the_others_are_told(offer: Offer) -> None:
    offer(
        {"external": lacks("not set"), "container": lacks("no engine"), "jars": has("Kafka"), "embedded": has("tansu")}
    )
    told: list[str] = []
    assert plugin.start_broker(told).name == "Kafka"
    assert told == ["no external broker: not set", "no container broker: no engine", "ran on Kafka"]


def test_a_kind_asked_for_is_taken_although_an_earlier_one_is_there(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer({"container": has("container"), "jars": has("Kafka")})
    monkeypatch.setenv(plugin.KIND_VARIABLE, "jars")
    assert plugin.start_broker([]).name == "Kafka"


def test_a_kind_asked_for_in_vain_fails_although_others_are_there(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer({"container": lacks("no engine"), "jars": has("Kafka")})
    monkeypatch.setenv(plugin.KIND_VARIABLE, "container")
    with pytest.raises(BrokerUnavailableError, match="no engine"):
        plugin.start_broker([])


def test_servers_that_are_named_and_do_not_answer_fail_although_others_are_there(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer({"external": lacks("nothing answers"), "jars": has("Kafka")})
    monkeypatch.setenv(plugin.SERVERS_VARIABLE, "127.0.0.1:1")
    with pytest.raises(BrokerUnavailableError, match="nothing answers"):
        plugin.start_broker([])


def test_an_unknown_kind_is_refused_by_name(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer({"jars": has("Kafka")})
    monkeypatch.setenv(plugin.KIND_VARIABLE, "zookeeper")
    with pytest.raises(BrokerUnavailableError, match="zookeeper is none of jars"):
        plugin.start_broker([])


def test_no_broker_at_all_fails_with_every_reason(offer: Offer) -> None:
    offer({"container": lacks("no engine"), "jars": lacks("no java")})
    with pytest.raises(BrokerUnavailableError, match=r"no engine.*no java"):
        plugin.start_broker([])
