"""An export to files, once: the records log as it ends now, or source files, under the policy of an export.

What was read is told by the manifest, and the rest follows from it: the same offsets, or the same files, give the same
bytes.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from projections.privacy_classes import CLASS_TABLE_DIGESTS
from projections.records import RECORD_KINDS
from projections.version import PROJECTION_VERSION
from worker.exports import ExportPolicy, make_upserts, read_upserts
from worker.file_exports.files import FORMATS, ExportDirectory
from worker.file_exports.manifest import Manifest, PartitionEntry, PolicyEntry, SourceEntry, SourceFileEntry
from worker.file_exports.spill import FilesRefused, Spill
from worker.file_mode import record_of
from worker.generations.binding import refuse_dropped
from worker.generations.log import read_history
from worker.local_fold import Tally, Unbound, fold_files
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.source_files import SourceFile
from worker.topic_scan import BrokerFailed, open_scan
from worker.topics import own_topics


class Collected(NamedTuple):
    """What was read: where from, by which projection it was made, and how many messages could not leave."""

    source: SourceEntry
    projection_version: int
    withheld: int


def export_to_files(
    name: str, policy: ExportPolicy, directory: Path, file_format: str, collect: Callable[[Spill], Collected]
) -> Manifest:
    """Write an export's records, which ``collect`` puts into a spill, as files of a directory, the manifest last.

    Raises FilesRefused, and what ``collect`` raises; the directory is as it was then, unless files were being written.
    """
    policy_entry = describe_policy(policy)
    FORMATS[file_format].check()
    with ExportDirectory(directory, policy_entry.digest) as target:
        with Spill(directory) as spill:
            collected = collect(spill)
            kinds = [kind for kind in RECORD_KINDS if policy.takes_kind(kind)]
            has_pricing = policy.prices is not None and "cost" in kinds
            files = target.write(spill, kinds, FORMATS[file_format], has_pricing=has_pricing)
        manifest = Manifest(
            projection_version=collected.projection_version,
            export=name,
            policy=policy_entry,
            source=collected.source,
            withheld=collected.withheld,
            files=files,
        )
        target.complete(manifest)
    return manifest


def describe_policy(policy: ExportPolicy) -> PolicyEntry:
    """Say under which rules records leave, as far as that may leave with them."""
    redaction = policy.redaction
    rules = None if policy.filter is None else policy.filter.rules(_named(policy, policy.filter.repos))
    prices = None if policy.prices is None else str(policy.prices.version)
    # The policy's own digest is as good a guess at the names in it as they are, so it does not leave as it is.
    digest = policy.shown_digest(policy.digest)
    if redaction is None:
        return PolicyEntry(digest=digest, redacts=False, filter=rules, price_table=prices)
    return PolicyEntry(
        digest=digest,
        redacts=True,
        profile=redaction.profile,
        class_table=CLASS_TABLE_DIGESTS[redaction.profile],
        public_repos=policy.shown_digest(sorted(redaction.public_repos)),
        key_id=redaction.key_id,
        filter=rules,
        price_table=prices,
    )


def _named(policy: ExportPolicy, repos: Sequence[str]) -> list[str]:
    redaction = policy.redaction
    if redaction is None:
        return list(repos)
    return [repo if repo in redaction.public_repos else str(redaction.digest(repo)) for repo in repos]


async def collect_log(
    settings: Settings, policy: ExportPolicy, spill: Spill, on_progress: Callable[[int, int], None]
) -> Collected:
    """Read the records log of the settings' generation up to where it ends now.

    Raises StartError, BrokerFailed or FilesRefused.
    """
    topic = own_topics(settings).records
    withheld = messages_read = 0
    async with open_scan(settings) as scan:
        generations = await read_history(scan, settings)
        refuse_dropped(generations, settings.generation)
        spans = await scan.spans(await scan.partitions([topic]))
        if not spans:
            raise BrokerFailed(f"there is no topic {topic}")
        total = sum(span.length for span in spans.values())
        ends = {place: span.end for place, span in spans.items()}
        async for place, messages in scan.read(spans):
            upserts, refused = read_upserts(policy, settings.generation, messages)
            await asyncio.to_thread(spill.add, upserts)
            withheld += refused
            messages_read += len(messages)
            # The embedded broker lists ends that are too low.
            ends[place] = max(ends[place], messages[-1].offset + 1)
            on_progress(messages_read, total)
    bound = generations.bindings.get(settings.generation)
    partitions = [
        PartitionEntry(partition=place.partition, start=spans[place].start, end=ends[place]) for place in spans
    ]
    source = SourceEntry(generation=settings.generation, topic=topic, partitions=partitions)
    return Collected(source, PROJECTION_VERSION if bound is None else bound.projection_version, withheld)


def collect_files(
    files: Sequence[SourceFile],
    policy: ExportPolicy,
    limits: LimitSettings,
    unbound: Unbound,
    tally: Tally,
    spill: Spill,
) -> Collected:
    """Project source files as file mode does.

    Raises SourceFileError for a file that cannot be read, and FilesRefused for one that changed meanwhile.
    """
    entries = [_source_entry(file, policy) for file in files]
    offset = 0
    for batch in fold_files(files, limits, unbound, tally):
        items = [record_of(change, offset + index) for index, change in enumerate(batch)]
        offset += len(items)
        spill.add(make_upserts(policy, items))
    if entries != [_source_entry(file, policy) for file in files]:
        raise FilesRefused("a source file changed while it was read: run the export again when it is complete")
    entries.sort(key=lambda entry: (entry.source, entry.digest))
    return Collected(SourceEntry(files=entries, unbound=unbound), PROJECTION_VERSION, 0)


def _source_entry(file: SourceFile, policy: ExportPolicy) -> SourceFileEntry:
    try:
        with file.path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
    except OSError as error:
        raise FilesRefused(f"cannot read {file.path}: {error.strerror or type(error).__name__}") from error
    # An unkeyed digest would tell whether a guess at what was said is right.
    shown = digest if policy.redaction is None else str(policy.redaction.digest(digest))
    return SourceFileEntry(source=file.source, bytes=size, digest=shown)
