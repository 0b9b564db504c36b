"""The policy of an export as the settings and its sink make it: one answer for whoever writes or checks that sink."""

from worker.exports import ExportPolicy
from worker.price_file import estimate_prices
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink_place import sink_origin
from worker.sink_switch import can_be_switched


def policy_for(settings: Settings, export: ExportSettings) -> ExportPolicy:
    """Make the policy of an export for the settings' generation.

    Raises SettingsError when the export has no usable key or price table, and SinkRefused for a sink URL that names
    none.
    """
    origin = sink_origin(settings.app_id, settings.generation, is_switchable=can_be_switched(export.sink))
    return ExportPolicy.from_settings(export, origin=origin, prices=estimate_prices(settings, export))
