"""Status as an operator asks for it, with and without a worker; and the accounts, exact at every scrape."""

import threading

import pytest

from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, WorkerProcess, worlds
from tests.worlds.world import SourceMessage
from worker.kafka import TopicPartition
from worker.status import Accounts, read_accounts

pytestmark = pytest.mark.integration


def scrape(worker: WorkerProcess) -> dict[TopicPartition, Accounts]:
    status, body = worker.get("/metrics")
    assert status == 200
    return read_accounts(body.decode())


def test_the_accounts_are_exact_at_every_scrape_while_messages_come(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    worker = pipeline.worker()
    worker.start()
    worker.wait_ready()
    messages = worlds(range(90, 96))
    poisoned = [
        message
        for index, message in enumerate(messages)
        for message in ([message] if index % 9 else [message, SourceMessage("workflow-runs", None, b"{poison")])
    ]
    publishing = threading.Thread(target=pipeline.publish, args=(poisoned, 0.2))
    publishing.start()
    moments: set[tuple[int, int]] = set()
    while publishing.is_alive():
        accounts = scrape(worker)
        assert [place for place, one in accounts.items() if one.unaccounted] == []
        consumed = sum(one.consumed for one in accounts.values())
        moments.add((consumed, sum(one.in_flight for one in accounts.values())))
    publishing.join()
    pipeline.wait_settled()
    accounts = scrape(worker)
    assert sum(one.consumed for one in accounts.values()) == len(poisoned)
    assert not any(one.unaccounted or one.in_flight for one in accounts.values())
    # It was looked at while it worked, not before or after.
    assert len(moments) > 5
    assert worker.stop() == 0


def test_status_tells_what_became_of_messages_and_what_is_still_to_do(pipeline: Pipeline, commands: Commands) -> None:
    pipeline.create_topics()
    messages = [*worlds(range(96, 98)), SourceMessage("workflow-runs", None, b"{poison")]
    pipeline.publish(messages)
    code, out, err = commands.run("status")
    assert code == 0, err
    assert "no counts: http://127.0.0.1:" in err
    before = commands.json("status")
    assert sum(one["lag"] for one in before["partitions"] if one["role"] == "project") == len(messages)
    assert {group["members"] for group in before["groups"]} == {0}
    assert before["missingTopics"] == []

    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    url = f"http://127.0.0.1:{worker.port}"
    after = commands.json("status", "--worker", url)
    assert [one["lag"] for one in after["partitions"] if one["lag"]] == []
    assert {group["role"]: group["members"] for group in after["groups"]} == {
        "project": 1,
        "fold": 1,
        "export:plain": 1,
        "export:public": 1,
    }
    sources = [one for one in after["partitions"] if "consumed" in one]
    assert sum(one["consumed"] for one in sources) == len(messages)
    assert sum(one["deadLettered"].get("invalid_json", 0) for one in sources) == 1
    assert {(one["inFlight"], one["unaccounted"], one["stopped"]) for one in sources} == {(0, 0, False)}
    code, out, _ = commands.run("status", "--worker", url)
    assert code == 0
    assert "invalid_json 1" in out.partition("dead-lettered: ")[2]
    assert worker.stop() == 0
    code, _, err = commands.run("status", "--worker", url)
    assert (code, f"no counts: {url} does not answer" in err) == (1, True)


def test_with_a_token_the_metrics_are_for_those_who_name_it_and_probes_need_none(
    pipeline: Pipeline, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.create_topics()
    worker = pipeline.worker(TRACE_PROJECTOR_WEB_TOKEN="a-token-of-this-test")
    worker.start()
    worker.wait_ready()
    assert [worker.get(page)[0] for page in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
    monkeypatch.setenv("TRACE_PROJECTOR_WEB_PORT", str(worker.port))
    assert "no counts" in commands.run("status")[2]
    monkeypatch.setenv("TRACE_PROJECTOR_WEB_TOKEN", "another-token-of-this-test")
    assert "no counts" in commands.run("status")[2]
    monkeypatch.setenv("TRACE_PROJECTOR_WEB_TOKEN", "a-token-of-this-test")
    code, _, err = commands.run("status")
    assert (code, "no counts" in err) == (0, False)
    assert "a-token-of-this-test" not in commands.run("config")[1] + worker.log_path.read_text()
    assert worker.stop() == 0
