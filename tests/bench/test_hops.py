"""The hops that frameworks run give the records of the worker's own core."""

from collections import defaultdict
from pathlib import Path

import pytest

from projections.facts import partition_of
from tests.bench.peers.hops import Exporting, Folding, Outgoing, Projecting, RecordRow
from tests.bench.place import KEY_VARIABLE, OWN_PARTITIONS, Place
from tests.bench.traffic import make_traffic
from tests.worlds.cluster import clean_pass


def test_three_hops_give_the_records_of_one_pass_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k" * 40)
    place = Place.on("nowhere:9092", "hops", tmp_path)
    messages = make_traffic(500)
    logs: dict[str, dict[int, list[Outgoing]]] = {
        topic: defaultdict(list) for topic in (place.topics.facts, place.topics.records)
    }

    def publish(outgoing: list[Outgoing]) -> None:
        for one in outgoing:
            assert one.partition < OWN_PARTITIONS
            assert not one.owner or one.partition == partition_of(one.owner, OWN_PARTITIONS)
            logs[one.topic][one.partition].append(one)

    projecting, folding, exporting = Projecting(place), Folding(place), Exporting(place)
    for offset, message in enumerate(messages):
        topic = place.topics.sources[message.topic]
        publish(projecting.facts_of(topic, 0, offset, message.key, message.value))
    facts, read = logs[place.topics.facts], dict.fromkeys(range(OWN_PARTITIONS), 0)
    while any(read[partition] < len(facts[partition]) for partition in read):
        for partition in read:
            part = facts[partition][read[partition] :]
            rows = [(offset, one.key, one.value) for offset, one in enumerate(part, read[partition])]
            read[partition] += len(part)
            publish(folding.fold(partition, rows))

    rows_of = {
        upsert.id: upsert.json
        for log in logs[place.topics.records].values()
        for upsert in exporting.upserts(
            RecordRow(offset, 0, one.key, one.value, one.headers) for offset, one in enumerate(log)
        )
    }
    whole = clean_pass(messages)
    assert len(whole.records) > 150
    assert len([json for json in rows_of.values() if json is not None]) == len(whole.records)
    assert not any(b"an owner" in json for json in rows_of.values() if json is not None)
