"""Dead letters as an operator handles them: listed, looked at, counted, and their messages projected again."""

import asyncio
import json

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from tests.brokers.broker import Broker
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, worlds
from tests.integration.test_worker import assert_same_as_file_mode
from tests.worlds.world import SECRET_MARKER, SourceMessage
from worker.kafka import TopicPartition

pytestmark = pytest.mark.integration

# Small enough that many messages of a world are above it.
TOO_SMALL = "message_bytes_max = 700"


def limit_messages(pipeline: Pipeline) -> None:
    """Make a settings file under which messages that are larger than a few hundred bytes are dead letters."""
    text = pipeline.config.read_text()
    pipeline.config.write_text(text.replace("[limits]", f"[limits]\n{TOO_SMALL}"))


def unlimit_messages(pipeline: Pipeline) -> None:
    pipeline.config.write_text(pipeline.config.read_text().replace(f"{TOO_SMALL}\n", ""))


def test_letters_are_listed_counted_and_shown_and_content_comes_only_when_it_is_asked_for(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    secret = b'["' + SECRET_MARKER.encode() + b'"]'
    topic = pipeline.topic("workflow-runs")
    pipeline.publish(
        [
            SourceMessage("workflow-runs", b"one key", b'{"kind":"run"'),
            SourceMessage("workflow-runs", b"one key", secret),
            SourceMessage("gate-decisions", b"one key", b"\xff\xfe"),
        ]
    )
    worker = pipeline.worker()
    worker.start("--role", "project")
    pipeline.wait_settled(["project"])
    assert worker.stop() == 0

    code, out, err = commands.run("dead-letters", "list")
    assert code == 0
    assert "3 dead letters" in err
    assert len(out.splitlines()) == 4
    listed = commands.json("dead-letters", "list", "--topic", topic)
    assert listed["count"] == 2
    assert [letter["reason"] for letter in listed["letters"]] == ["invalid_json", "not_an_object"]
    assert commands.json("dead-letters", "list", "--reason", "invalid_utf8")["letters"][0]["byteLength"] == 2
    assert commands.json("dead-letters", "list", "--limit", "1")["leftOut"] == 2
    assert commands.json("dead-letters", "list", "--since", "1h")["count"] == 3
    assert commands.json("dead-letters", "list", "--until", "1h")["count"] == 0
    counts = commands.json("dead-letters", "stats")
    assert {(count["topic"], count["reason"], count["letters"]) for count in counts} == {
        (topic, "invalid_json", 1),
        (topic, "not_an_object", 1),
        (pipeline.topic("gate-decisions"), "invalid_utf8", 1),
    }

    place = next(letter for letter in listed["letters"] if letter["reason"] == "not_an_object")
    name = f"{topic}/{place['partition']}/{place['offset']}"
    code, without, _ = commands.run("dead-letters", "show", name)
    assert code == 0
    assert SECRET_MARKER not in out + without + json.dumps([listed, counts])
    code, shown, _ = commands.run("dead-letters", "show", name, "--content")
    assert code == 0
    assert secret.decode() in shown
    assert commands.json("dead-letters", "show", name, "--content")["content"]["key"] == {"text": "one key"}
    code, _, err = commands.run("dead-letters", "show", f"{topic}/0/999")
    assert (code, "there is no dead letter about" in err) == (1, True)


def test_redriven_messages_give_the_trace_they_would_have_given_the_first_time(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    limit_messages(pipeline)
    messages = worlds(range(60, 64))
    pipeline.publish(messages)
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0
    refused = commands.json("dead-letters", "list", "--reason", "message_too_large", "--limit", "100000")["count"]
    assert refused > 30
    # Tombstones and what they hid are among them, so the places of messages matter.
    assert any(message.value is None for message in messages)

    unlimit_messages(pipeline)
    code, _, err = commands.run("dead-letters", "redrive", "--reason", "message_too_large", "--dry-run")
    assert "dry run, nothing written" in err
    assert commands.json("dead-letters", "list", "--reason", "message_too_large")["count"] == refused
    worker = pipeline.worker("again")
    worker.start()
    code, _, err = commands.run("dead-letters", "redrive", "--reason", "message_too_large", "--limit", "20")
    assert (code, "20 dead letters" in err) == (0, True), err
    assert commands.json("dead-letters", "list", "--reason", "message_too_large")["count"] == refused - 20
    done = commands.json("dead-letters", "redrive", "--reason", "message_too_large")
    assert sum(done["counts"].values()) == refused - 20
    pipeline.wait_settled()
    assert worker.stop() == 0
    assert commands.json("dead-letters", "list", "--reason", "message_too_large")["count"] == 0
    assert_same_as_file_mode(pipeline)


def test_a_message_that_is_refused_again_or_gone_keeps_its_letter(
    pipeline: Pipeline, commands: Commands, kafka: Broker
) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker deletes no messages")
    pipeline.create_topics()
    pipeline.publish([SourceMessage("workflow-runs", b"k", b"{"), SourceMessage("workflow-runs", b"k", b"[")])
    worker = pipeline.worker()
    worker.start("--role", "project")
    pipeline.wait_settled(["project"])
    assert worker.stop() == 0
    [first, second] = commands.json("dead-letters", "list")["letters"]
    place = TopicPartition(first["topic"], first["partition"])
    asyncio.run(delete_before(kafka, place, second["offset"]))

    code, out, err = commands.run("dead-letters", "redrive")
    assert code == 1
    assert f"{place.topic}/{place.partition}/{first['offset']}  stays: gone: " in out
    assert "deleted by retention" in out
    assert f"{place.topic}/{place.partition}/{second['offset']}  stays: still refused: invalid_json" in out
    assert "2 dead letters: 1 still refused, 1 gone" in err
    assert commands.json("dead-letters", "list")["count"] == 2
    code, _, err = commands.run(
        "dead-letters", "show", f"{place.topic}/{place.partition}/{first['offset']}", "--content"
    )
    assert (code, "deleted by retention" in err) == (1, True)


async def delete_before(kafka: Broker, place: TopicPartition, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_records({place: RecordsToDelete(before_offset=offset)})
    finally:
        await admin.close()


def test_an_application_without_dead_letters_says_so(pipeline: Pipeline, commands: Commands) -> None:
    code, _, err = commands.run("dead-letters", "list")
    assert code == 1
    assert f"there is no topic {pipeline.app_id}-trace-dead-letters" in err
    code, _, err = commands.run("dead-letters", "show", "nonsense")
    assert (code, "is no TOPIC/PARTITION/OFFSET" in err) == (2, True)
    code, _, err = commands.run("dead-letters", "list", "--since", "yesterday")
    assert (code, "--since is no time" in err) == (2, True)
