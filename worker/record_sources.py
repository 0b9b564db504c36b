"""Records to report on, from wherever they are: read back from sinks, or projected from files in memory, unredacted."""

from collections.abc import Callable, Collection, Iterator, Sequence

from projections.prices import PriceTable
from worker.exports import make_upserts
from worker.file_mode import file_policy, record_of
from worker.local_fold import Tally, fold_files
from worker.record_reader import Record, open_reader
from worker.settings_sections import LimitSettings
from worker.sink import RecordKey
from worker.source_files import SourceFile


def read_records(urls: Sequence[str], kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
    """Yield the records of sinks, by the contract of ``RecordReader.read``. Raises ``RecordsUnreadable``."""
    for url in urls:
        yield from open_reader(url).read(kinds, run_id)


def project_records(
    files: Sequence[SourceFile],
    kinds: Collection[str],
    limits: LimitSettings,
    prices: PriceTable | None,
    tally: Tally,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> list[Record]:
    """Project files as file mode does and give the records of some kinds; nothing is written anywhere.

    Conversations that nothing is bound to are runs of their own. ``prices`` estimates costs without an amount. Raises
    SourceFileError for a file that cannot be read.
    """
    policy = file_policy(None, prices)
    living: dict[RecordKey, Record] = {}
    for batch in fold_files(files, limits, "standalone", tally, on_bytes):
        wanted = [record_of(change, 0) for change in batch if change.kind in kinds]
        for upsert in make_upserts(policy, wanted):
            if upsert.record is None:
                living.pop(upsert.key, None)
            else:
                living[upsert.key] = upsert.record
    return list(living.values())
