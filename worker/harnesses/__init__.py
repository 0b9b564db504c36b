"""The harnesses whose transcripts are found on disk, one module each, in one table."""

from collections.abc import Mapping
from typing import Final

from worker.harnesses import claude_code, codex, ct_agents, harn, robota
from worker.harnesses.contract import Harness

HARNESSES: Final[Mapping[str, Harness]] = {
    "claude-code": claude_code.HARNESS,
    "codex": codex.HARNESS,
    "ct-agents": ct_agents.HARNESS,
    "harn": harn.HARNESS,
    "robota": robota.HARNESS,
}
