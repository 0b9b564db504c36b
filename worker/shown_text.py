"""Text of records as a terminal may show it: as text, whatever somebody put into a name."""

from typing import Final

from rich.cells import cell_len, set_cell_size

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


def shown_name(text: str, *, ascii_only: bool = False) -> str:
    """Show a name and cut one that is beyond all measure."""
    return cut(shown(text[: 4 * NAME_CELLS_MAX], ascii_only=ascii_only), NAME_CELLS_MAX, ascii_only=ascii_only)


def cut(text: str, cells: int, *, ascii_only: bool = False) -> str:
    """Cut a text to a width, with a mark where something is missing."""
    if cell_len(text) <= cells:
        return text
    mark = "~" if ascii_only else "…"
    return set_cell_size(text, cells - 1).rstrip() + mark if cells > 1 else mark[:cells]


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def duration_text(seconds: float) -> str:
    """Write seconds for people, in its two greatest units: ``340ms``, ``6.5s``, ``21m 18s``, ``3h 05m``, ``2d 04h``."""
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
