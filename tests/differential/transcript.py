"""The transcript of a run: a list of `Happened`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Happened(NamedTuple):
    """A step: the verb, the names of the messages that it delivered, and its answer as plain values."""

    verb: str
    delivered: Sequence[int] = ()
    answer: Any = None


class Reopened(NamedTuple):
    """The deliveries of one queue after a reopening, until a claim returned nothing."""

    #: The fairness key of each delivery.
    keys: list[str]
    #: The names of the messages by fairness key and stream, in the order of delivery.
    groups: dict[tuple[str, str], list[int]]
    #: How many messages each key gets in a turn; None where completions decide which keys take turns.
    turns: dict[str, int] | None
