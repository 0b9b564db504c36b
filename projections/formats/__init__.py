"""The transcript formats: how a native line becomes a line fact, and how line facts become items, in one table.

A line fact's body holds no content and always has ``at`` (the line's own time or null), ``len`` and ``sha`` (its
span). What else it holds is between a format's ``read_line`` and its assembly.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from projections.formats.assembly import Assembly
from projections.formats.claude_code import ClaudeCodeAssembly
from projections.formats.claude_code import read_line as read_claude_code_line
from projections.formats.codex import CodexAssembly
from projections.formats.codex_lines import read_line as read_codex_line
from projections.formats.ct_agents import CtAgentsAssembly
from projections.formats.ct_agents import read_line as read_ct_agents_line
from projections.formats.harn import HarnAssembly
from projections.formats.harn import read_line as read_harn_line
from projections.formats.observation import ObservationAssembly
from projections.formats.robota import read_line as read_robota_line
from projections.formats.robota_assembly import RobotaAssembly
from projections.ids import ConversationIdentity


class Format(NamedTuple):
    """One transcript format.

    ``read_line`` takes the parsed line, its bytes without the newline and its ordinal (where the source numbers its
    entries); it gives a line fact's body, or the bounded reason why the line says nothing to a trace; it raises
    ProjectionError for a line that can never be projected. It is None for observations, which are no native lines.
    An assembly with ``takes_any_order`` gives the same items in whatever order the lines of its sources are added.
    """

    read_line: Callable[[Any, bytes, int | None], dict[str, Any] | str] | None
    assembly: Callable[[ConversationIdentity], Assembly]
    takes_any_order: bool = False


FORMATS: dict[str, Format] = {
    "claude-code": Format(read_claude_code_line, ClaudeCodeAssembly),
    "codex": Format(read_codex_line, CodexAssembly),
    "ct-agents": Format(read_ct_agents_line, CtAgentsAssembly, takes_any_order=True),
    "harn": Format(read_harn_line, HarnAssembly),
    "observation": Format(None, ObservationAssembly),
    "robota": Format(read_robota_line, RobotaAssembly, takes_any_order=True),
}
"""The transcript formats by name, as ``source.format`` of a transcript message gives it."""
