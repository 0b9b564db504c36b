"""The version of the projection: what a generation of facts and records is bound to, and what a dead letter names.

Rules for editing: raise it by one in the change that makes the same messages give other facts or other records, and
only then. A worker that finds its generation bound to another version stops, and `trace-projector rebuild` makes the
records anew beside the old ones.
"""

from typing import Final

PROJECTION_VERSION: Final = 2
