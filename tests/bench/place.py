"""Where a contender runs: its broker, topics, partitions and DuckDB file, named alike for all of them."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from worker.kafka import TopicPartition
from worker.settings_sections import ExportSettings

SOURCES = ("workflow-runs", "gate-decisions", "ledger-changes", "transcripts")
SOURCE_PARTITIONS = 2
OWN_PARTITIONS = 3
KEY_VARIABLE = "EXPORT_KEY"


class Topics(NamedTuple):
    """The topics of one contender: ``sources`` by source name, then the two hops' own."""

    sources: Mapping[str, str]
    facts: str
    records: str

    @classmethod
    def of(cls, app_id: str) -> "Topics":
        """Name them as a worker's first generation does."""
        sources = {source: f"{app_id}-{source}" for source in SOURCES}
        return cls(sources, f"{app_id}-g1-trace-facts", f"{app_id}-g1-trace-records")

    @property
    def source_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in self.sources.values() for number in range(SOURCE_PARTITIONS)]

    @property
    def fact_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.facts, number) for number in range(OWN_PARTITIONS)]

    @property
    def record_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.records, number) for number in range(OWN_PARTITIONS)]


class Place(NamedTuple):
    """Where a contender runs: its broker, its topics and its DuckDB file."""

    servers: str
    app_id: str
    topics: Topics
    duckdb_path: Path

    @classmethod
    def from_arguments(cls) -> "Place":
        """Read the three arguments that every contender is started with."""
        parser = argparse.ArgumentParser()
        parser.add_argument("servers")
        parser.add_argument("app_id")
        parser.add_argument("duckdb_path", type=Path)
        given = parser.parse_args()
        return cls(given.servers, given.app_id, Topics.of(given.app_id), given.duckdb_path)

    @classmethod
    def on(cls, servers: str, app_id: str, directory: Path) -> "Place":
        """Place a contender on a broker, its file in a directory."""
        return cls(servers, app_id, Topics.of(app_id), directory / f"{app_id}.duckdb")

    @property
    def source_of(self) -> dict[str, str]:
        """Topic to the name of its source."""
        return {topic: source for source, topic in self.topics.sources.items()}

    @property
    def export_settings(self) -> ExportSettings:
        """Give the one export: redacted, as exports are unless they say otherwise."""
        return ExportSettings(name="plain", sink=f"duckdb:{self.duckdb_path}", key_env=KEY_VARIABLE)
