"""Where the fold's state is kept: what the settings say, what the broker allows, and what the directory is like."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from worker import app
from worker.settings import Settings
from worker.state import FoldStore, LocalFoldStore, MemoryFoldStore
from worker.topic_ids import TopicIdentity
from worker.topics import StartError


def chosen(monkeypatch: pytest.MonkeyPatch, settings: Settings, topic_id: str | None = "an-id") -> FoldStore:
    @contextlib.asynccontextmanager
    async def scan(_settings: Settings) -> AsyncIterator[Any]:
        yield SimpleNamespace(admin=None)

    async def identities(_admin: Any, topics: Collection[str]) -> dict[str, TopicIdentity]:
        return {topic: TopicIdentity(topic_id, 8) for topic in topics}

    monkeypatch.setattr(app, "open_scan", scan)
    monkeypatch.setattr(app, "topic_identities", identities)
    return asyncio.run(app._fold_store(settings))


def test_without_a_directory_state_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(chosen(monkeypatch, Settings())) is MemoryFoldStore


def test_with_a_directory_state_is_there_by_application_and_generation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for generation in (1, 2):
        settings = Settings(app_id="one", generation=generation, state_dir=tmp_path / "state")
        store = chosen(monkeypatch, settings)
        assert type(store) is LocalFoldStore
        local = asyncio.run(store.open_local(3, 0))
        assert local is not None
        asyncio.run(local.close())
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("state/fold/*/*")) == [
        "state/fold/one-g1/partition-3",
        "state/fold/one-g2/partition-3",
    ]


def test_where_topics_have_no_ids_state_is_in_memory_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        store = chosen(monkeypatch, Settings(state_dir=tmp_path), topic_id=None)
    assert type(store) is MemoryFoldStore
    assert [(line["event"], line["reason"]) for line in logs] == [("state_not_used", "topic_without_id")]


def test_a_directory_that_cannot_be_made_stops_the_start_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"state_dir cannot be used: .*; name a directory that this user may write"):
        chosen(monkeypatch, Settings(state_dir=tmp_path / "file"))
