"""The port to a destination that answers queries: its own way to sum up what is too much to be read record by record.

A reader whose destination speaks SQL has it besides ``RecordReader``; the columns are those of
``worker.stores.columns``.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from worker.stores.views import Dialect

Answered = TypeVar("Answered")

Row = tuple[Any, ...]
Ask = Callable[[str, Mapping[str, Any]], list[Row]]
"""Asks one query, with values for exactly the parameters that it names, and gives all rows of the answer."""


class Tables(NamedTuple):
    """What can be asked: of each kind's table what stands behind FROM and takes an alias, and how its SQL is spoken."""

    names: Mapping[str, str]
    dialect: Dialect
    ask: Ask


@runtime_checkable
class QueryReader(Protocol):
    """Answers queries about what a sink holds, whether or not somebody writes it meanwhile."""

    def answer(self, work: Callable[[Tables], Answered]) -> Answered:
        """Do some work that asks queries, all of them as of one moment if the destination can do that.

        Nothing is held any more when it returns. Raises ``RecordsUnreadable``.
        """
        ...
