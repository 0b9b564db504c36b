"""The price table that the settings name, and whether an export estimates costs by it."""

import tomllib
from datetime import date
from pathlib import Path
from typing import Any

from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.prices import PriceTable, PriceTableError, built_in_table, parse_price_table
from worker.settings import Settings
from worker.settings_sections import ExportSettings, SettingsError


def load_prices(settings: Settings) -> PriceTable:
    """Give the table of ``prices_file`` (TOML when it is named so, else JSON), without one the built-in table.

    Raises SettingsError for a file that cannot be read and for the first thing in it that is wrong.
    """
    if settings.prices_file is None:
        return built_in_table()
    try:
        return parse_price_table(_read(settings.prices_file))
    except PriceTableError as error:
        raise SettingsError([f"prices_file {settings.prices_file}: {error.field}: {error.reason}"]) from error


def estimate_prices(settings: Settings, export: ExportSettings | None) -> PriceTable | None:
    """Give the table by which an export estimates costs without an amount; None when they stay without one.

    What the export says (``estimate_costs``) wins over the settings; None stands for records without an export's rules.
    """
    said = None if export is None else export.estimate_costs
    return load_prices(settings) if (settings.estimate_costs if said is None else said) else None


def _read(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError([f"cannot read prices_file {path}: {error.strerror or type(error).__name__}"]) from error
    try:
        if path.suffix == ".toml":
            return _with_date_texts(tomllib.loads(data.decode()))
        return decode_json(data)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"prices_file {path} is no TOML: {error}"]) from error
    except ProjectionError as error:
        raise SettingsError([f"prices_file {path} is no JSON: {error.reason}"]) from error


def _with_date_texts(value: Any) -> Any:
    """TOML has dates of its own, which people write without quotes."""
    if isinstance(value, dict):
        return {name: _with_date_texts(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_date_texts(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value
