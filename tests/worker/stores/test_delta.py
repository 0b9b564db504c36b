"""Where Delta tables are: URLs without credentials, options from a file, and errors without values."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError

from tests.worker.sinks.destinations import POLICY
from worker.record_reader import RecordsUnreadable, open_reader
from worker.sink import SinkBusy, SinkFailed, SinkRefused, open_sink
from worker.stores.delta import delta_place, told


@pytest.mark.parametrize(
    "location",
    [
        "",
        "file:///tmp/x",
        "s3://key:ZZSECRETZZ@bucket/traces",
        "s3://bucket/traces?aws_secret_access_key=ZZSECRETZZ",
        "s3://bucket/traces#ZZSECRETZZ",
    ],
)
def test_a_location_that_is_none_or_holds_credentials_is_refused_and_not_repeated(location: str) -> None:
    with pytest.raises(SinkRefused) as caught:
        open_sink(f"delta:{location}", POLICY)
    assert "ZZSECRETZZ" not in str(caught.value)
    with pytest.raises(RecordsUnreadable):
        open_reader(f"delta:{location}")


def test_a_container_of_azure_is_no_credential() -> None:
    place = delta_place("abfss://container@account.dfs.core.windows.net/traces/")
    assert place.root == "abfss://container@account.dfs.core.windows.net/traces"


def test_options_of_a_store_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    place = delta_place(f"s3://bucket/traces?storage_options_file={path}")
    with pytest.raises(SinkRefused, match="cannot read"):
        place.options()
    for text in ("ZZSECRETZZ", '["ZZSECRETZZ"]', '{"key": 5}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SinkRefused, match="no JSON object of texts") as caught:
            place.options()
        assert "ZZSECRETZZ" not in str(caught.value)
    path.write_text('{"aws_secret_access_key": "ZZSECRETZZ"}', encoding="utf-8")
    assert place.options() == {"aws_secret_access_key": "ZZSECRETZZ"}
    assert "ZZSECRETZZ" not in repr(place)


def test_a_store_that_does_not_exist_is_told_apart_from_one_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(SinkRefused, match="scheme"):
        asyncio.run(open_sink("delta:nowhere://bucket/traces", POLICY).open())
    options = {
        "aws_endpoint_url": "http://127.0.0.1:1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "ZZSECRETZZ",
        "aws_region": "eu-north-1",
        "aws_allow_http": "true",
        "max_retries": "0",
    }
    (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
    sink = open_sink(f"delta:s3://bucket/traces?storage_options_file={tmp_path / 'options.json'}", POLICY)
    with pytest.raises(SinkFailed, match="s3://bucket/traces failed") as caught:
        asyncio.run(sink.open())
    assert "ZZSECRETZZ" not in str(caught.value)


def test_a_refused_commit_is_told_as_somebody_elses_turn() -> None:
    def fail() -> Iterator[None]:
        raise CommitFailedError("ZZSECRETZZ")

    with pytest.raises(SinkBusy) as caught:
        told(delta_place("traces"), fail)
    assert caught.value.delay_s > 0
    assert caught.value.__context__ is None


def test_an_error_of_the_system_is_named_in_its_words() -> None:
    def fail() -> Iterator[None]:
        raise OSError("ZZSECRETZZ: x (os error 28)")

    with pytest.raises(SinkFailed, match="No space left on device") as caught:
        told(delta_place("traces"), fail)
    assert "ZZSECRETZZ" not in str(caught.value)
