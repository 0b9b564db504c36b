"""Text of records as a terminal may show it: as text, whatever somebody put into a name."""

from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from projections.reports.spend import Sum

NAME_CELLS_MAX: Final = 160
"""A name that takes more of a terminal is cut; the machine-readable forms have all of it."""


def shown(text: str, *, ascii_only: bool = False) -> str:
    r"""Escape what is no visible character: control codes, directions, separators, lone surrogates (``\x1b``).

    For a terminal without Unicode everything beyond ASCII is escaped.
    """
    if text.isprintable() and (text.isascii() or not ascii_only):
        return text
    return "".join(
        char if char.isprintable() and (char.isascii() or not ascii_only) else _escape(char) for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


class Screen(NamedTuple):
    """Where something is to be shown: so many cells wide, with Unicode or without."""

    width: int
    ascii_only: bool

    @classmethod
    def of(cls, console: Console) -> "Screen":
        """Learn what a console can show."""
        return cls(console.width, console.options.ascii_only)

    @property
    def at_least(self) -> str:
        """The mark before a sum or a time of which a part is unknown."""
        return ">=" if self.ascii_only else "≥"

    def name(self, text: str, cells_max: int = NAME_CELLS_MAX) -> str:
        """Show a name that came with a record, cut where it is too long."""
        # No cell holds less than part of a character, so the rest of a very long name cannot show.
        return self.cut(shown(text[: 4 * NAME_CELLS_MAX], ascii_only=self.ascii_only), cells_max)

    def cut(self, text: str, cells_max: int) -> str:
        """Cut a text to a width, with a mark where something is missing."""
        if cell_len(text) <= cells_max:
            return text
        mark = "~" if self.ascii_only else "…"
        return set_cell_size(text, cells_max - 1).rstrip() + mark if cells_max > 1 else mark[:cells_max]

    def sum(self, value: Sum, members: int, form: str = "{:,}") -> str:
        """Write a sum over so many members: ``5``, ``≥5 +2?`` if two do not know their part, ``?`` if none does."""
        if not value.unknown:
            return form.format(value.known)
        if value.unknown == members:
            return "?"
        return f"{self.at_least}{form.format(value.known)} +{value.unknown}?"

    def usd(self, value: Sum, members: int, *, has_estimates: bool) -> str:
        """Write an amount of US dollars to the hundredth of a cent, with a ``~`` if estimates are in it."""
        form = "{:.2g}" if 0 < value.known < 0.0001 else "{:,.4f}"
        return f"{'~' if has_estimates else ''}{self.sum(value, members, form)}"


def duration_text(seconds: float) -> str:
    """Write seconds for people, in the two greatest units: ``340ms``, ``6.5s``, ``21m 18s``, ``3h 05m``, ``2d 04h``."""
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 0.9995:
        return f"{sign}{seconds * 1000:.0f}ms" if seconds else "0s"
    if seconds < 59.95:
        return f"{sign}{seconds:.1f}s".replace(".0s", "s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{sign}{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{sign}{hours}h {minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{sign}{days}d {hours:02d}h"
