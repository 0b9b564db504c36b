"""The manifest of an export to files: what its files are, what was read for them, and under which policy they left.

Rules for editing: everything in it may leave with the files, so nothing private stands in it, and no unkeyed digest of
anything private (an export that redacts keys them). It is a function of what was read: no clock, host or path. Whoever
reads one trusts nothing in it: names are plain, and its bytes are exactly those that its content encodes to.
"""

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from projections.canonical import digest_of_json
from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.records import SCHEMA

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = "trace-projector export 1"

MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger file is no manifest, and is not read."""

_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_FileName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$", max_length=100)]
_Count = Annotated[int, Field(ge=0)]


class ManifestUnreadable(Exception):  # noqa: N818  (a state of a file, not a fault of the program)
    """A file that is no manifest, or not any more; the text says why and holds nothing of it."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True)


class FileEntry(_Part):
    """One file: its kind of rows, how many, and its bytes."""

    name: _FileName
    kind: str
    rows: _Count
    bytes: _Count
    sha256: _Sha256


class PartitionEntry(_Part):
    """Offsets of one partition of the records log that were read: from ``start`` on, before ``end``."""

    partition: _Count
    start: _Count
    end: _Count


class SourceFileEntry(_Part):
    """One source file that was read. Its name may be private, so its digest (keyed, if the export redacts) names it."""

    source: str
    bytes: _Count
    digest: str


class SourceEntry(_Part):
    """What was read: partitions of the records log of a generation, or files."""

    generation: _Count | None = None
    topic: str | None = None
    partitions: list[PartitionEntry] | None = None
    files: list[SourceFileEntry] | None = None
    unbound: str | None = None


class PolicyEntry(_Part):
    """Under which rules the rows left.

    ``digest``, ``public_repos`` and repositories of the filter are keyed digests where the export redacts; ``key_id``
    names its key without telling it.
    """

    digest: str
    redacts: bool
    profile: str | None = None
    class_table: str | None = None
    public_repos: str | None = None
    key_id: str | None = None
    filter: dict[str, JsonValue] | None = None
    price_table: str | None = None


class Manifest(_Part):
    """All of it; ``withheld`` counts the messages of the log that could not leave."""

    format: Literal["trace-projector export 1"] = FORMAT
    record_schema: Annotated[str, Field(alias="schema")] = SCHEMA
    projection_version: _Count
    export: str
    policy: PolicyEntry
    source: SourceEntry
    withheld: _Count
    files: list[FileEntry]

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [file.name for file in self.files]
        if len(set(names)) != len(names) or MANIFEST_NAME in names:
            message = "names a file twice, or itself"
            raise ValueError(message)
        return self


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest: JSON for people to read, keys in order, with a digest of the rest in it."""
    content: dict[str, Any] = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    content["manifestSha256"] = digest_of_json(content)
    return f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode()


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises ManifestUnreadable for anything but the exact bytes that a manifest is written as."""
    try:
        content = decode_json(data)
    except ProjectionError:
        raise ManifestUnreadable("is no JSON: it was truncated or altered") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ManifestUnreadable("is no manifest of this release")
    content.pop("manifestSha256", None)
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError:
        # The error would carry its content along.
        raise ManifestUnreadable("was altered: it is no manifest any more") from None
    if encode_manifest(manifest) != data:
        raise ManifestUnreadable("was altered: it is not what its digest says")
    return manifest
