"""Where an export's Delta tables are: a local directory or a prefix of an object store, how they are made and opened.

Rules for editing: a driver's error repeats values, so none leaves this module or is anybody's context; credentials come
from the environment, as the store's own tools read them, or from a file, and never from the URL.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from worker.sink import SinkBusy, SinkFailed, SinkRefused
from worker.stores.arrow_schemas import DELETIONS, DELETIONS_SCHEMA, table_schema
from worker.stores.columns import COLUMNS

_Result = TypeVar("_Result")

SCHEMA_VERSION: Final = 1
BUSY_DELAY_S: Final = 0.5
FORMAT: Final = "trace-projector delta"
POLICY_PROPERTY: Final = "trace_projector.policy_digest"
VERSION_PROPERTY: Final = "trace_projector.schema_version"
OPTIONS_FILE: Final = "storage_options_file"

TABLES: Final[dict[str, Any]] = {
    **{f"trace_{kind}": table_schema(kind) for kind in COLUMNS},
    f"trace_{DELETIONS}": DELETIONS_SCHEMA,
}
"""Name and schema of every table under the place."""

# A commit is made on top of what was read or not at all: what was read decided which versions are newer.
ON_TOP: Final = CommitProperties(max_commit_retries=0)

_PROPERTIES: Final = {
    # Bounds of texts such as the record itself would only repeat content in the log.
    "delta.dataSkippingStatsColumns": "id,_generation,_offset",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.logRetentionDuration": "interval 30 days",
}
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)")


class DeltaPlace(NamedTuple):
    """A directory or prefix of its own; ``__repr__`` holds no credentials, because none are in it."""

    root: str
    is_local: bool
    options_file: Path | None

    @property
    def path(self) -> Path:
        """The directory of a local one."""
        assert self.is_local
        return Path(self.root)

    def table_uri(self, name: str) -> str:
        """Give the address of one of the tables."""
        return f"{self.root}/{name}"

    def options(self) -> dict[str, str] | None:
        """Read what the store wants to know beside the environment. Raises SinkRefused."""
        if self.options_file is None:
            return None
        try:
            options = orjson.loads(self.options_file.read_bytes())
        except OSError as error:
            raise SinkRefused(f"cannot read {self.options_file}: {error.strerror or type(error).__name__}") from None
        except orjson.JSONDecodeError:
            options = None
        if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
            raise SinkRefused(f"{self.options_file} is no JSON object of texts")
        return options


def delta_place(location: str) -> DeltaPlace:
    """Read what stands behind ``delta:`` in a URL. Raises SinkRefused, which repeats nothing of it."""
    if not location:
        raise SinkRefused("a Delta sink needs a place, as in delta:traces or delta:s3://bucket/traces")
    if "://" not in location:
        return DeltaPlace(str(Path(location).absolute()), is_local=True, options_file=None)
    parts = urlsplit(location)
    if parts.scheme == "file":
        raise SinkRefused("name a local Delta sink by its path, as in delta:traces")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    options_file = parameters.pop(OPTIONS_FILE, None)
    # Azure's URLs name the container where others have a user.
    if parts.password is not None or parameters or parts.fragment:
        raise SinkRefused(
            "the URL of a Delta sink holds no credentials and no options: they come from the environment or from the "
            f"JSON file that ?{OPTIONS_FILE}=PATH names"
        )
    root = location.partition("?")[0].rstrip("/")
    return DeltaPlace(root, is_local=False, options_file=Path(options_file) if options_file else None)


def told(place: DeltaPlace, work: Callable[[], _Result]) -> _Result:
    """Do some work and say what went wrong in words that may be logged. Raises SinkBusy, SinkFailed or SinkRefused."""
    failure: Exception
    try:
        return work()
    except CommitFailedError:
        failure = SinkBusy(f"{place.root} is being written by others", BUSY_DELAY_S)
    except TableNotFoundError as error:
        if str(error).startswith("Unknown scheme"):
            failure = SinkRefused("no object store has the scheme of this Delta sink's URL")
        else:
            failure = SinkRefused(f"{place.root} lacks a table: start again, and everything is read into a new one")
    # The driver raises errors of its own, Python's and Arrow's.
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        found = _OS_ERROR.search(str(error))
        reason = os.strerror(int(found[1])) if found else type(error).__name__
        failure = SinkFailed(f"{place.root} failed: {reason}")
    # Not inside of the handler, where the driver's error would be the context of ours.
    raise failure


def open_table(place: DeltaPlace, name: str, options: dict[str, str] | None) -> DeltaTable | None:
    """Open a table as it is now, None if there is none; its columns may be of another release."""
    uri = place.table_uri(name)
    if place.is_local and not Path(uri).is_dir():
        return None
    return DeltaTable(uri, storage_options=options) if DeltaTable.is_deltatable(uri, options) else None


def make_table(place: DeltaPlace, name: str, options: dict[str, str] | None, policy_digest: str) -> None:
    """Make a table, empty and ours, unless somebody else makes it at the same time."""
    DeltaTable.create(
        place.table_uri(name),
        TABLES[name],
        mode="ignore",
        name=name,
        configuration={**_PROPERTIES, POLICY_PROPERTY: policy_digest, VERSION_PROPERTY: str(SCHEMA_VERSION)},
        storage_options=options,
        raise_if_key_not_exists=False,
    )


def properties_of(table: DeltaTable) -> dict[str, str]:
    """Give the properties of a table."""
    return dict(table.metadata().configuration)


def schema_version(place: DeltaPlace, table: DeltaTable) -> int:
    """Tell the version of a table's columns. Raises SinkRefused for a table that is not ours, or of a newer release."""
    version = properties_of(table).get(VERSION_PROPERTY, "")
    if not version.isdecimal():
        raise SinkRefused(f"{place.root} holds a table that is not of an export; give the export another place")
    if int(version) > SCHEMA_VERSION:
        raise SinkRefused(f"{place.root} has schema version {version}, from a newer release than this one")
    return int(version)
