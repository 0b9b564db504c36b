"""What leaves: records as upserts, redacted by the policy of their export; deletions leave under redacted ids too.

Rules for editing: nothing of a record passes this module but through ``redact`` and ``redact_id``, unless the export
says ``redact = false``; the digest key is read here, handed to the policy, and kept, shown and logged nowhere.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from projections.canonical import canonical_json, digest_of_json, encode_record
from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.prices import PriceTable
from projections.pricing import price_cost
from projections.privacy import Policy, redact, redact_id
from projections.records import RECORD_KINDS
from worker.export_filter import ExportFilter
from worker.kafka import Message
from worker.settings import KEY_BYTES_RECOMMENDED
from worker.settings_sections import ExportSettings
from worker.sink import Pricing, Upsert

KIND_HEADER: Final = "kind"
REPO_HEADER: Final = "repo"
SPLIT_HEADER: Final = "cache-write-split"

_ARTIFACT_IDS: Final = ("commit:", "pr:", "file:")
# How the ids begin that the projection makes.
_MADE_IDS: Final = ("workflow:", "call:", "response:", "cost:", *_ARTIFACT_IDS)


class RecordMessage(NamedTuple):
    """A version of a record as the records log holds it; ``record`` is None for a deletion.

    ``repo`` is known of deleted artifacts only: a living record says itself which repository it is of.
    ``cache_write_split`` {ttl5m, ttl1h} stands beside a cost whose source tells how long its cache writes live.
    """

    generation: int
    offset: int
    kind: str
    id: str
    repo: str | None
    record: bytes | None
    cache_write_split: Mapping[str, int] | None = None


class ExportPolicy:
    """What an export lets out, and the digest by which its sink knows these rules again.

    ``filter`` says which records it is for, None when it is for all. ``prices`` is the table that costs without an
    amount are estimated by, None when they stay without one. ``warnings`` are sentences for the operator. Raises
    ``SettingsError`` when a redacting export has no usable key.
    """

    __slots__ = ("digest", "filter", "prices", "redaction", "warnings")

    def __init__(
        self,
        redaction: Policy | None,
        origin: str,
        prices: PriceTable | None = None,
        warnings: tuple[str, ...] = (),
        record_filter: ExportFilter | None = None,
    ) -> None:
        self.redaction = redaction
        self.prices = prices
        self.filter = record_filter
        # Offsets compare only within one log, so a sink is bound to where its records come from as well.
        fingerprint = None if redaction is None else redaction.fingerprint
        rules: dict[str, object] = {"redaction": fingerprint, "origin": origin}
        if prices is not None:
            # One sink holds amounts of one table: with another one, everything is priced again or nothing is.
            rules["prices"] = prices.digest
        if record_filter is not None:
            rules["filter"] = self.shown_digest(record_filter.rules(record_filter.repos))
        self.digest = digest_of_json(rules)
        self.warnings = warnings

    def __repr__(self) -> str:
        return f"ExportPolicy(redacts={self.redaction is not None}, digest={self.digest!r})"

    @classmethod
    def from_settings(
        cls,
        export: ExportSettings,
        *,
        origin: str,
        prices: PriceTable | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ExportPolicy":
        """Read the key and make the policy of an export.

        ``origin`` names the log that versions are offsets of: the application's id, or a name that no application has.
        """
        record_filter = None if export.filter is None else ExportFilter(export.filter)
        if not export.redact:
            return cls(None, origin, prices, (), record_filter)
        key = export.load_key(environ)
        is_short = len(key) < KEY_BYTES_RECOMMENDED
        warning = (
            f"export {export.name}: the digest key is shorter than {KEY_BYTES_RECOMMENDED} bytes; a key that can be "
            "guessed undoes every digest"
        )
        redaction = Policy(key, export.public_repos, export.profile)
        return cls(redaction, origin, prices, (warning,) if is_short else (), record_filter)

    @classmethod
    def unredacted(cls, *, origin: str, prices: PriceTable | None = None) -> "ExportPolicy":
        """The policy of somebody who asked for records as they are."""
        return cls(None, origin, prices)

    def takes_kind(self, kind: str) -> bool:
        """Whether a record of a kind can ever have left."""
        return self.filter is None or self.filter.takes_kind(kind)

    def takes(self, kind: str, record_id: str) -> bool:
        """Whether a record can ever have left; of one that cannot, nothing has to be deleted either."""
        return self.filter is None or self.filter.takes(kind, record_id)

    def shown_digest(self, value: object) -> str:
        """Digest what only the operator should know in full and others may compare: keyed, if the export redacts.

        So a private name in it cannot be found by guessing.
        """
        if self.redaction is None:
            return digest_of_json(value)
        return str(self.redaction.digest(canonical_json(value).decode()))


def record_key(kind: str, record_id: str) -> bytes:
    """Give the key of a record in the records log: its id, behind its kind where a record of another kind may share it.

    Producers choose the ids of runs and gates, and a run may well be called like the pull request it is about; under
    one key, compaction would take one of the two for an older version of the other. No id holds a NUL.
    """
    is_shared = (kind == "run" and ("/" in record_id or record_id.startswith(_MADE_IDS))) or (
        kind == "gate" and record_id.startswith(_ARTIFACT_IDS)
    )
    return (f"{kind}\0{record_id}" if is_shared else record_id).encode()


def record_message(generation: int, message: Message) -> RecordMessage:
    """Read a message of the records log. Raises ``missing_key``, ``missing_header`` or ``invalid_utf8``."""
    if message.key is None:
        raise ProjectionError("missing_key")
    headers = dict(message.headers)
    # A header may be there without a value, as in a message that somebody else wrote.
    kind, repo, split = headers.get(KIND_HEADER), headers.get(REPO_HEADER), headers.get(SPLIT_HEADER)
    if kind is None:
        raise ProjectionError("missing_header", KIND_HEADER)
    try:
        return RecordMessage(
            generation=generation,
            offset=message.offset,
            kind=kind.decode(),
            id=message.key.decode().rpartition("\0")[2],
            repo=None if repo is None else repo.decode(),
            record=message.value,
            cache_write_split=None if split is None else decode_json(split),
        )
    except UnicodeDecodeError:
        # The error would carry the bytes along.
        raise ProjectionError("invalid_utf8") from None


def read_upserts(policy: ExportPolicy, generation: int, messages: Iterable[Message]) -> tuple[list[Upsert], int]:
    """Make upserts of messages of the records log, and count those that cannot leave.

    An export itself makes dead letters of these.
    """
    upserts, withheld = [], 0
    for message in messages:
        try:
            item = record_message(generation, message)
            if policy.takes(item.kind, item.id):
                upserts.append(make_upsert(policy, item))
        except ProjectionError:
            withheld += 1
    return upserts, withheld


def make_upserts(policy: ExportPolicy, items: Iterable[RecordMessage]) -> list[Upsert]:
    """Make what a sink is given of records and deletions, in their order; see ``make_upsert``.

    Records of kinds and runs that the export is not for never leave, so they are passed over.
    """
    return [make_upsert(policy, item) for item in items if policy.takes(item.kind, item.id)]


def make_upsert(policy: ExportPolicy, item: RecordMessage) -> Upsert:
    """Make what a sink is given of one record or deletion: redacted, under the id that may leave.

    A record that the export's filter does not hold is deleted there: an older version of it may have been in it.
    A cost without an amount leaves with an estimate where the policy has prices, and what the amount rests on beside
    it. Raises ``ProjectionError`` for what is no record under its own id: nothing says which of its fields may leave.
    """
    if item.kind not in RECORD_KINDS:
        raise ProjectionError("unknown_kind")
    if item.record is None:
        return Upsert(item.kind, _id_that_leaves(policy, item), item.generation, item.offset, None, None)
    record = decode_json(item.record)
    if not isinstance(record, dict) or (record.get("kind"), record.get("id")) != (item.kind, item.id):
        raise ProjectionError("not_its_record")
    if policy.filter is not None and not policy.filter.holds(record):
        repo = record.get("repo")
        gone = item._replace(repo=repo if isinstance(repo, str) else None)
        return Upsert(item.kind, _id_that_leaves(policy, gone), item.generation, item.offset, None, None)
    pricing = None
    if policy.prices is not None and item.kind == "cost":
        record, pricing = _priced(record, item.cache_write_split, policy.prices)
    if policy.redaction is not None:
        record = redact(record, policy.redaction)
    is_changed = policy.redaction is not None or (pricing is not None and pricing.basis == "estimate")
    json = encode_record(record) if is_changed else item.record
    return Upsert(item.kind, str(record["id"]), item.generation, item.offset, record, json, pricing)


def _priced(
    record: dict[str, Any], cache_write_split: Mapping[str, int] | None, prices: PriceTable
) -> tuple[dict[str, Any], Pricing]:
    priced, quote = price_cost(record, cache_write_split, prices)
    is_asked = quote.basis in ("estimate", "unavailable")
    return priced, Pricing(quote.basis, quote.reason, str(prices.version) if is_asked else None)


def _id_that_leaves(policy: ExportPolicy, item: RecordMessage) -> str:
    if policy.redaction is None:
        return item.id
    return redact_id(item.kind, item.id, item.repo, policy.redaction)
