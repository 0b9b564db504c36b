"""When an export has stood still for too long to go on."""

import pytest

from worker.kafka import TopicPartition
from worker.standstill import has_missed_deletions
from worker.topic_scan import Span

ZERO, ONE = TopicPartition("records", 0), TopicPartition("records", 1)


@pytest.mark.parametrize(
    ("committed", "span", "kept", "has_missed"),
    [
        (100, Span(0, 100), 100, False),
        (100, Span(0, 150), 100, False),
        # Between what was read and what is young enough something stood, whether or not it still does.
        (100, Span(0, 150), 120, True),
        (100, Span(0, 150), 150, True),
        # A group whose offsets have expired begins at the beginning.
        (None, Span(0, 150), 1, True),
        (None, Span(40, 150), 40, False),
        (None, Span(150, 150), 150, False),
    ],
)
def test_unread_offsets_that_are_older_than_deletions_are_kept_count(
    committed: int | None, span: Span, kept: int, *, has_missed: bool
) -> None:
    known = {ONE: 7} if committed is None else {ZERO: committed, ONE: 7}
    assert has_missed_deletions(known, {ZERO: span, ONE: Span(0, 7)}, {ZERO: kept, ONE: 7}) is has_missed
