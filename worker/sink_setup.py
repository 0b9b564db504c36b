"""What a sink's URL does not say and some sinks need all the same: the worker's own cluster, or secret headers."""

from typing import Protocol, runtime_checkable

from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import Sink


@runtime_checkable
class ConfiguredSink(Protocol):
    """A sink that takes more than its URL; ``configure`` comes before the first ``open`` and does no network IO."""

    def configure(self, settings: Settings, export: ExportSettings) -> None:
        """Take what is needed of the settings. Raises SettingsError or SinkRefused."""
        ...


def configure_sink(sink: Sink, settings: Settings, export: ExportSettings) -> None:
    """Give a sink what it needs beside its URL; most need nothing. Raises SettingsError or SinkRefused."""
    if isinstance(sink, ConfiguredSink):
        sink.configure(settings, export)
