"""What every transcript format shares: items, the records in the making, assembled from line facts in source order.

A format's assembly gets the line facts of one conversation in source order (source id, byte offset, subrecord) and
decides everything that needs neighbours. It never sees runs or attempts: the conversation aggregate owns those.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from projections.ids import ConversationIdentity
from projections.text import storable_text


class Position(NamedTuple):
    """The place of a line fact: sources in text order, then bytes, then the part of the line."""

    source_id: str
    offset: int
    part: int


def line_key(format_name: str, source_id: str, offset: int, part: int = 0) -> str:
    """Give the fact key of one line (or observation) of a conversation, whose position is the three others."""
    return f"{line_key_prefix(format_name)}{offset}:{part}:{source_id}"


def line_key_prefix(format_name: str) -> str:
    """Give what the fact keys of all lines of one format begin with."""
    return f"line:{format_name}:"


def split_line_key(key: str) -> tuple[str, Position]:
    """Give format and position of a line's fact key; the inverse of line_key."""
    _line, format_name, offset, part, source_id = key.split(":", 4)
    return format_name, Position(source_id, int(offset), int(part))


Order = tuple[int, str, int, int, int]
"""The place of an item or reading: format, source id, byte offset, part of the line, and then the item's rank."""


class Report(NamedTuple):
    """One reading of a usage counter that stands for a whole turn or conversation."""

    sequence: int
    position: Position
    at: str | None
    measurement: dict[str, Any]
    span: dict[str, Any] | None
    cache_write_split: dict[str, int] | None = None


class Item:
    """One call, cost or gate of a conversation, still without its run and attempt.

    ``native_id`` is a record id, except for a gate, whose id starts with its run. ``fields`` are the record's own
    fields in record order. ``at`` is None until a time is known. ``group`` names what is copied or kept together (a
    response); a withdrawn item is in no record. ``rank`` tells the items of a conversation apart, ``order`` is the
    item's place in the sources. ``cache_write_split`` {ttl5m, ttl1h} is what pricing wants to know about a cost and
    its record cannot hold. The aggregate keeps ``given``, which attempts it gave the cost to, and ``said``, the
    record id and time with which the item was last shown.
    """

    __slots__ = (
        "at",
        "cache_write_split",
        "fields",
        "given",
        "group",
        "kind",
        "measurement",
        "native_id",
        "order",
        "rank",
        "reports",
        "said",
        "shown",
        "withdrawn",
    )

    def __init__(self, kind: str, native_id: str, at: str | None, fields: dict[str, Any], group: Any = None) -> None:
        self.kind = kind
        self.native_id = native_id
        self.at = at
        self.fields = fields
        self.group = group
        self.measurement: dict[str, Any] | None = None
        self.reports: list[Report] | None = None
        self.shown: Report | None = None
        self.said: tuple[str, str | None] | None = None
        self.given: Any = None
        self.withdrawn = False
        self.rank = 0
        self.order: Order = (0, "", 0, 0, 0)
        self.cache_write_split: dict[str, int] | None = None


class Assembly(Protocol):
    """A format's way from line facts to items."""

    first_rank: int
    items: list[Item]
    touched: dict[int, Item]
    claims: dict[str, Any]
    new_claims: set[str]
    unanswered: set[str]
    shares_ids: bool

    def add(self, position: Position, body: dict[str, Any]) -> None:
        """Take the next line fact in source order; amortised O(1)."""

    def can_follow(self, position: Position, body: dict[str, Any]) -> bool:
        """Say whether a line may be added behind lines of later sources, as if it had been added before them."""

    def answer(self, meeting: str, claims: dict[str, Any]) -> None:
        """Take all claims on something that several conversations hold."""


class Items:
    """The items of one assembly: their order, their times, and which of them changed since they were last taken."""

    def __init__(self, identity: ConversationIdentity) -> None:
        self.identity = identity
        self.first_rank = 0
        self.items: list[Item] = []
        self.touched: dict[int, Item] = {}
        self.claims: dict[str, Any] = {}
        self.new_claims: set[str] = set()
        # Meetings whose last answer means something else, now that the conversation holds more.
        self.unanswered: set[str] = set()
        # Whether two items have one id: what a source calls "a#2" may be what the second "a" is called.
        self.shares_ids = False
        self._coded_ids: set[str] = set()
        self._last_time: dict[str, str] = {}
        self._untimed: dict[str, list[Item]] = {}

    def can_follow(self, _position: Position, _body: dict[str, Any]) -> bool:
        """Say no: unless a format knows better, what one source says may depend on any source before it."""
        return False

    def answer(self, meeting: str, claims: dict[str, Any]) -> None:
        """Formats whose history is never copied claim nothing, so nothing is answered."""
        raise AssertionError(meeting, len(claims))

    def see_time(self, source_id: str, at: str | None) -> str | None:
        """Give the time of a line: its own, else that of the nearest earlier line of its source that has one.

        The first time of a source is also given to the items and readings before it (decisions: a transcript item
        without a timestamp).
        """
        if at is None:
            return self._last_time.get(source_id)
        self._last_time[source_id] = at
        for item in self._untimed.pop(source_id, ()):
            if item.reports is not None:
                _give_time(item, source_id, at)
            elif item.at is None:
                item.at = at
            self.touch(item)
        return at

    def put(self, item: Item, place: Position | str, timed_by: str | None = None) -> Item:
        """Add a new item at the end; a place is a position, or a source id for the next place in that source.

        An item without a time waits for that of its source, or of the source that ``timed_by`` names.
        """
        source_id, offset, part = (place, len(self.items), 0) if isinstance(place, str) else place
        item.rank = self.first_rank + len(self.items)
        item.order = (self.first_rank, source_id, offset, part, item.rank)
        self.items.append(item)
        # Every name that an assembly makes up holds a character that ids encode, so others need not be remembered.
        if "%" in item.native_id.rpartition(":")[2]:
            self.shares_ids = self.shares_ids or item.native_id in self._coded_ids
            self._coded_ids.add(item.native_id)
        if item.at is None:
            self._untimed.setdefault(source_id if timed_by is None else timed_by, []).append(item)
        self.touch(item)
        return item

    def report(self, cost: Item, report: Report) -> None:
        """Add a reading to a counter that is among the items."""
        add_report(cost, report)
        if report.at is None:
            self._untimed.setdefault(report.position.source_id, []).append(cost)
        self.touch(cost)

    def touch(self, item: Item) -> None:
        """Remember that an item's record may have changed."""
        self.touched[item.rank] = item

    def withdraw(self, items: Iterable[Item], *, withdrawn: bool) -> None:
        """Take items out of the records, or back in."""
        for item in items:
            if item.withdrawn is not withdrawn:
                item.withdrawn = withdrawn
                self.touch(item)


def _give_time(cost: Item, source_id: str, at: str) -> None:
    """Give a time to the readings of one source that have none."""
    assert cost.reports is not None
    reports = cost.reports
    cost.reports, cost.shown, cost.at = None, None, None
    for report in reports:
        is_untimed = report.at is None and report.position.source_id == source_id
        add_report(cost, report._replace(at=at) if is_untimed else report)


def span_of(position: Position, body: dict[str, Any]) -> dict[str, Any]:
    """Give the span of a line fact: where its line stands and what it hashes to."""
    return {
        "sourceId": storable_text(position.source_id),
        "byteOffset": position.offset,
        "byteLength": body["len"],
        "contentHash": body["sha"],
    }


def add_report(cost: Item, report: Report) -> None:
    """Keep every reading of a counter, and show the one with the highest sequence (a tie goes to the later)."""
    if cost.reports is None:
        cost.reports = []
    cost.reports.append(report)
    if cost.shown is not None and report.sequence < cost.shown.sequence:
        return
    cost.shown = report
    cost.at = report.at if report.at is not None else cost.at
    cost.fields["measurement"] = cost.measurement = report.measurement
    cost.cache_write_split = report.cache_write_split
    cost.fields.pop("span", None)
    if report.span is not None:
        cost.fields["span"] = report.span


def storable_measurement(measurement: dict[str, Any]) -> dict[str, Any]:
    """Give a measurement as a record holds it: ids are made from the native texts, and stored escaped."""
    return {name: storable_text(value) if isinstance(value, str) else value for name, value in measurement.items()}
