"""A directory takes the place of another whole: with crashes at any step, where names cannot be exchanged, and back."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from worker.sink import SinkBusy, SinkRefused
from worker.stores import directory as directory_place
from worker.stores.directory import (
    META_NAME,
    discard,
    held,
    make_directory,
    policy_of,
    read_meta,
    switch,
    write_meta,
)


class CrashError(Exception):
    """Stands for the end of the process."""


def make(path: Path, word: str, policy: str) -> None:
    def fill(directory: Path) -> None:
        (directory / "table").mkdir()
        (directory / "table" / "rows").write_text(word, encoding="utf-8")

    make_directory(path, {"policy_digest": policy}, fill)


def word_of(path: Path) -> str | None:
    if not path.exists():
        return None
    assert read_meta(path) is not None
    return (path / "table" / "rows").read_text(encoding="utf-8")


@pytest.fixture(params=[True, False], ids=["names can be exchanged", "names cannot be exchanged"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not request.param:
        monkeypatch.setattr(directory_place.sys, "platform", "darwin")  # type: ignore[attr-defined]
    return tmp_path / "traces"


def crash_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let so many changes of the directory happen, and then no more."""
    left = iter([True] * steps)

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if not next(left, False):
                raise CrashError
            return change(*arguments, **options)

        return step

    for name in ("rename", "replace", "unlink", "rmdir"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(directory_place, "_exchange", counted(directory_place._exchange))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))


@pytest.mark.parametrize("keep", ["g1", None])
@pytest.mark.parametrize("policies", [("old", "new"), ("same", "same")], ids=["another policy", "the same policy"])
@pytest.mark.parametrize("steps", range(14))
def test_a_switch_that_crashed_anywhere_is_finished_by_doing_it_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, steps: int, policies: tuple[str, str], keep: str | None
) -> None:
    make(place, "old", policies[0])
    make(place.with_name("traces.g2"), "new", policies[1])
    if keep is not None:
        make(place.with_name(f"traces.{keep}"), "older", policies[0])
    with monkeypatch.context() as patch:
        crash_after(patch, steps)
        try:
            switch(str(place), "g2", policies[1], keep)
        except CrashError:
            crashed = True
        else:
            crashed = False
    assert crashed or steps >= 6
    switch(str(place), "g2", policies[1], keep)
    assert word_of(place) == "new"
    names = {path.name for path in place.parent.iterdir()}
    assert names == {"traces", *([f"traces.{keep}"] if keep else [])}
    if keep is not None:
        assert word_of(place.with_name(f"traces.{keep}")) == "old"


def test_readers_never_miss_the_directory_where_names_can_be_exchanged(tmp_path: Path) -> None:
    place = tmp_path / "traces"
    make(place, "old", "old")
    is_over, missed = threading.Event(), []

    def look() -> None:
        while not is_over.is_set():
            if not place.exists():
                missed.append(place)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(50):
            make(place.with_name("traces.next"), f"{number}", f"policy {number}")
            switch(str(place), "next", f"policy {number}", None)
    finally:
        is_over.set()
        reader.join()
    assert word_of(place) == "49"
    assert missed == []


def test_a_switch_waits_while_somebody_holds_either(place: Path) -> None:
    make(place, "old", "old")
    make(place.with_name("traces.g2"), "new", "new")
    for path in (place, place.with_name("traces.g2")):
        with held(path, shared=True), pytest.raises(SinkBusy):
            switch(str(place), "g2", "new", "g1")
    assert word_of(place) == "old"
    switch(str(place), "g2", "new", "g1")
    assert word_of(place) == "new"


def test_what_is_not_ours_is_neither_replaced_nor_removed(place: Path) -> None:
    for path in (place, place.with_name("traces.g1")):
        path.mkdir()
        (path / "mine").write_text("mine", encoding="utf-8")
    make(place.with_name("traces.g2"), "new", "new")
    with pytest.raises(SinkRefused, match="not of an export"):
        switch(str(place), "g2", "new", "g1")
    with pytest.raises(SinkRefused, match="not of an export"):
        discard(str(place), "g1")
    assert (place / "mine").read_text(encoding="utf-8") == "mine"
    assert word_of(place.with_name("traces.g2")) == "new"


def test_a_removal_that_was_interrupted_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in range(3):
        make(place.with_name("traces.g1"), "old", "old")
        with monkeypatch.context() as patch:
            crash_after(patch, steps)
            with pytest.raises(CrashError):
                discard(str(place), "g1")
        assert discard(str(place), "g1")
        assert list(place.parent.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"policy_digest": 5}'])
def test_a_directory_whose_word_of_itself_is_none_is_refused(place: Path, text: str) -> None:
    place.mkdir()
    (place / META_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(SinkRefused):
        policy_of(str(place))


def test_of_two_that_make_a_directory_the_first_wins(place: Path) -> None:
    make(place, "first", "policy")
    make(place, "second", "policy")
    assert word_of(place) == "first"
    assert [path.name for path in place.parent.iterdir()] == ["traces"]


def test_several_may_write_at_once_what_a_directory_says_of_itself(tmp_path: Path) -> None:
    metas = [{"policy_digest": str(number)} for number in range(8)]
    with ThreadPoolExecutor(len(metas)) as pool:
        for written in [pool.submit(write_meta, tmp_path, meta) for meta in metas * 10]:
            written.result()
    assert read_meta(tmp_path) in metas
    assert list(tmp_path.iterdir()) == [tmp_path / META_NAME]
