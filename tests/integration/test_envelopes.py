"""Through a worker on a real broker: topics in which values come in all forms beside each other."""

import random

import orjson
import pytest

from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, worlds
from tests.integration.test_worker import assert_accounted, assert_same_as_file_mode
from tests.worlds.envelopes import WRAPPINGS, event, framed
from tests.worlds.messages import run
from tests.worlds.world import SourceMessage

pytestmark = pytest.mark.integration


def test_values_in_envelopes_and_frames_give_what_the_values_give_and_what_is_no_json_is_kept_for_later(
    pipeline: Pipeline, commands: Commands
) -> None:
    plain = worlds(range(3))
    choose = random.Random(3)
    mixed = [
        message._replace(value=choose.choice([*WRAPPINGS.values(), bytes])(message.value)) if message.value else message
        for message in plain
    ]
    key = framed(b'"run-framed"')
    row = orjson.dumps({**run(1), "id": "run-framed"})
    gone = [
        SourceMessage("workflow-runs", key, framed(row)),
        SourceMessage("workflow-runs", key, event(b"null")),
    ]
    avro = framed(b"\x16run-of-avro\x14doc-change")
    refused = [
        SourceMessage("workflow-runs", b"run-of-avro", avro),
        SourceMessage("gate-decisions", framed(b"\x04r1"), None),
        SourceMessage("ledger-changes", b"e1", event(row).replace(b'"data":' + row, b'"subject":"e1"')),
    ]
    pipeline.create_topics()
    pipeline.publish([*mixed, *gone, *refused])
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert_accounted(worker)
    assert worker.stop() == 0

    # File mode is told the values alone.
    pipeline.published = plain
    assert_same_as_file_mode(pipeline)
    whole = [letter for letter in pipeline.dead_letters() if not letter["partial"]]
    assert {(letter["topic"], letter["reason"], letter["field"]) for letter in whole} == {
        (pipeline.topic("workflow-runs"), "not_json_frame", None),
        (pipeline.topic("gate-decisions"), "not_json_frame", "key"),
        (pipeline.topic("ledger-changes"), "missing_data", "data"),
    }
    assert len(whole) == len(refused)
    topic = pipeline.topic("workflow-runs")
    listed = commands.json("dead-letters", "list", "--topic", topic, "--reason", "not_json_frame")["letters"]
    place = f"{listed[0]['topic']}/{listed[0]['partition']}/{listed[0]['offset']}"
    # The message is where it was, and shows which schema it was written by.
    assert commands.json("dead-letters", "show", place, "--content")["content"]["value"] == {"text": avro.decode()}
