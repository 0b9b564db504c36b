"""What an erasure may name, and which records it reaches."""

from typing import Any

import pytest

from projections.canonical import sha256_hex
from worker.erasure import Erasure, InvalidErasure

REF = "conversation:claude-code:laptop:abc"


def record(kind: str, record_id: str, run_id: str = "run-1") -> dict[str, Any]:
    return {"kind": kind, "id": record_id, "runId": run_id}


def test_the_message_is_what_the_erasures_topic_takes() -> None:
    assert Erasure.of("run", "größe 1").value == '{"run":"größe 1"}'.encode()
    assert Erasure.of("conversation", REF).value == b'{"conversation":"%s"}' % REF.encode()


@pytest.mark.parametrize(
    ("field", "name"), [("run", ""), ("run", "  "), ("conversation", "run-1"), ("conversation", "conversation:a:b")]
)
def test_what_no_run_and_no_conversation_can_be_called_is_refused(field: str, name: str) -> None:
    with pytest.raises(InvalidErasure, match=f"this is no {field}"):
        Erasure.of(field, name)


def test_a_refusal_does_not_repeat_the_name() -> None:
    with pytest.raises(InvalidErasure) as caught:
        Erasure.of("conversation", "ZZSECRETZZ")
    assert "ZZSECRETZZ" not in str(caught.value)


@pytest.mark.parametrize(
    ("erased", "reached"),
    [
        (record("run", "run-1"), True),
        (record("attempt", "workflow:run-1:s:0:0"), True),
        (record("run", "run-2", "run-2"), False),
    ],
)
def test_a_run_takes_all_records_that_are_its_own(erased: dict[str, Any], *, reached: bool) -> None:
    assert Erasure.of("run", "run-1").reaches(erased) is reached


def test_a_run_is_found_under_the_form_that_records_hold_its_id_in() -> None:
    assert Erasure.of("run", "a\x00b").reaches(record("run", "a�0000b", "a�0000b"))


@pytest.mark.parametrize(
    ("erased", "reached"),
    [
        (record("call", "call:claude-code:laptop:abc:toolu_1"), True),
        (record("cost", "cost:response:claude-code:laptop:abc:msg_1"), True),
        (record("cost", f"cost:{REF}:conversation:x:0"), True),
        (record("run", "r", f"standalone-{sha256_hex(REF.encode())}"), True),
        (record("call", "call:claude-code:laptop:abcd:toolu_1"), False),
        (record("call", "call:x:claude-code:laptop:abc"), False),
        (record("run", "run-1"), False),
    ],
)
def test_a_conversation_takes_its_items_and_the_run_that_it_is_of_its_own(
    erased: dict[str, Any], *, reached: bool
) -> None:
    assert Erasure.of("conversation", REF).reaches(erased) is reached
