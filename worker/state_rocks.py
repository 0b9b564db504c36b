"""Local state in RocksDB: one database per fold partition, in a directory that only its owner may enter.

Nothing is synced to the disk: what a killed process wrote survives it, and a machine that loses power loses the newest
batches whole, which are then read from the facts log again.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, ReadOptions, WriteBatch

from worker.settings import Settings
from worker.state import LocalFoldStore, StateFailedError

_Result = TypeVar("_Result")

_MIB: Final = 1024 * 1024
# Of all partitions together.
_BLOCK_CACHE_BYTES: Final = 4 * _MIB
# Of each partition; what is being written to a file is held beside what comes meanwhile.
_WRITE_BUFFER_BYTES: Final = 2 * _MIB
# For small buffers; RocksDB's own sizes, for buffers of 64 MiB, let it write everything again far more often.
_LEVEL_ZERO_FILES: Final = 8
_LEVEL_BASE_BYTES: Final = 32 * _MIB
_FILE_BYTES: Final = 4 * _MIB
_OPEN_FILES_MAX: Final = 64
_BLOOM_BITS_PER_KEY: Final = 10
_FORMAT: Final = 1
_DIRECTORY_MODE: Final = 0o700


def local_store(settings: Settings, topic_id: str | None, projection_version: int) -> LocalFoldStore:
    """Make the store below ``state_dir``, bound to the facts topic and the projection. Raises OSError."""
    assert settings.state_dir is not None
    directory = _directory(settings.state_dir, settings)
    make_private(directory)
    about = {
        "format": _FORMAT,
        "appId": settings.app_id,
        "generation": settings.generation,
        "topicId": topic_id,
        "partitions": settings.partitions,
        "projectionVersion": projection_version,
    }
    return LocalFoldStore(RocksShelves(directory), about)


def discard_local_state(settings: Settings) -> bool:
    """Remove what this machine holds of a generation's state; says whether there was any. Raises OSError."""
    if settings.state_dir is None or not (directory := _directory(settings.state_dir, settings)).exists():
        return False
    shutil.rmtree(directory)
    return True


def _directory(state_dir: Path, settings: Settings) -> Path:
    return state_dir / "fold" / f"{settings.app_id}-g{settings.generation}"


def make_private(directory: Path) -> None:
    """Make a directory that only its owner may enter, and its parents. Raises OSError."""
    directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    directory.chmod(_DIRECTORY_MODE)


class RocksShelves:
    """A database per partition below one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache = Cache(_BLOCK_CACHE_BYTES)

    def open(self, partition: int) -> "RocksBackend":
        path = self._path(partition)

        def open_database() -> Rdict:
            make_private(path)
            return Rdict(str(path), _options(self._cache))

        return RocksBackend(_told(open_database))

    def discard(self, partition: int) -> None:
        _told(lambda: shutil.rmtree(self._path(partition), ignore_errors=False))

    def _path(self, partition: int) -> Path:
        return self._directory / f"partition-{partition}"


class RocksBackend:
    """One open database; its keys and values are bytes, never objects."""

    def __init__(self, database: Rdict) -> None:
        self._database = database

    def get(self, key: bytes) -> bytes | None:
        return _told(lambda: _bytes_or_none(self._database.get(key)))

    def read(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        return _told(lambda: self._read(prefix))

    def _read(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        options = ReadOptions()
        # The prefix ends in a comma, so this is the first key behind its range.
        options.set_iterate_upper_bound(prefix[:-1] + bytes((prefix[-1] + 1,)))
        rows = []
        iterator = self._database.iter(options)
        iterator.seek(prefix)
        while iterator.valid():
            rows.append((iterator.key(), iterator.value()))
            iterator.next()
        # It also ends where a block cannot be read; only this tells the two apart.
        iterator.status()
        return rows

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        _told(lambda: self._database.write(batch))

    def close(self) -> None:
        _told(self._database.close)


def _options(cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)  # noqa: FBT003  (the library's own signature)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_level_zero_file_num_compaction_trigger(_LEVEL_ZERO_FILES)
    options.set_max_bytes_for_level_base(_LEVEL_BASE_BYTES)
    options.set_target_file_size_base(_FILE_BYTES)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_keep_log_file_num(1)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)  # noqa: FBT003  (the library's own signature)
    options.set_block_based_table_factory(table)
    return options


def _bytes_or_none(value: Any) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value


def _told(work: Callable[[], _Result]) -> _Result:
    """Do something with a database, and say in one word what went wrong with it."""
    try:
        return work()
    except OSError as error:
        raise StateFailedError("failed") from error
    # The library raises plain exceptions; only the text tells them apart.
    except Exception as error:
        text = str(error)
        reason = "locked" if "lock" in text and "IO error" in text else "corrupt" if "Corruption" in text else "failed"
        raise StateFailedError(reason) from error
