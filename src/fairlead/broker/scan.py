"""Choosing messages without the engine lock: which of those that a walk met does a filter select, by what is
stored now.

A filter may carry a regular expression that takes a fifth of a second for one error, so no filter is tested
under the lock. A verb checks the messages it is about to change again, under the lock: `still_selected`
compares what the filter looked at, and tests nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from fairlead.broker.core import Core
from fairlead.broker.locate import Located, locate_all
from fairlead.broker.walk import HasRow
from fairlead.decide.dead_filter import DeadLetterTest, Traits, traits_of
from fairlead.errors import FairleadError
from fairlead.model.lane import row_id, row_size
from fairlead.model.limits import HOLD_MS
from fairlead.model.message import Message, MessageState, record_bytes

#: Messages whose records are read together; those of one may have 300 KB.
_READ_AT_ONCE = 50
#: Messages that a hold takes between two looks at the clock.
TAKE_AT_ONCE = 20
_UNTOUCHED = MessageState(queue_id=0)

Met = TypeVar("Met", bound=HasRow)


class Candidate(NamedTuple):
    """`size` is what the message and its records have in bytes. `traits` is what a filter selected it by,
    None without one.
    """

    id: bytes
    size: int
    traits: Traits | None


def select(core: Core, test: DeadLetterTest, found: Sequence[HasRow]) -> Iterator[Candidate]:
    """Those of a page that the filter selects, one after the other, so that a caller can stop in between."""
    return (candidate for _, candidate in tested(core, test, found) if candidate is not None)


def tested(core: Core, test: DeadLetterTest, found: Sequence[Met]) -> Iterator[tuple[Met, Candidate | None]]:
    """Each of a page, and a candidate if the filter selects it. Raises `BrokerClosed` or `ServerStopping`
    between two messages.
    """
    for start in range(0, len(found), _READ_AT_ONCE):
        some = found[start : start + _READ_AT_ONCE]
        states = _read_states(core, [row_id(one.row) for one in some])
        for one, state in zip(some, states, strict=True):
            core.check_scan()
            message = _read_message(core, row_id(one.row)) if test.needs_message else None
            chosen = (message is not None or not test.needs_message) and test.selects(
                message, state or _UNTOUCHED
            )
            size = row_size(one.row) + record_bytes(state)
            yield one, Candidate(row_id(one.row), size, traits_of(state or _UNTOUCHED)) if chosen else None


def named(core: Core, ids: Sequence[bytes]) -> Iterator[Candidate]:
    """Messages that the caller named by their ids, whether they are there or not."""
    for start in range(0, len(ids), _READ_AT_ONCE):
        some = ids[start : start + _READ_AT_ONCE]
        for message_id, state in zip(some, _read_states(core, some), strict=True):
            core.check_scan()
            message = _read_message(core, message_id)
            yield Candidate(
                message_id, record_bytes(state) + (message.size if message is not None else 0), None
            )


def still_selected(candidate: Candidate, state: MessageState | None) -> bool:
    """Under the lock: is what the filter looked at as it was? Then its answer is the same, and need not be
    worked out again.
    """
    return candidate.traits is None or candidate.traits == traits_of(state or _UNTOUCHED)


class HoldTime:
    """Made at the beginning of a hold of the lock: says when the hold is to take no more messages."""

    def __init__(self, core: Core) -> None:
        self._clock = core.clock
        self._until_ms = core.clock.monotonic_ms() + HOLD_MS

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_ms() >= self._until_ms


def take_in_time(core: Core, part: Sequence[Candidate]) -> Iterator[tuple[Candidate, Located | None]]:
    """Under the lock: candidates, in order, with where each is now, until the time of the hold is over. The
    first TAKE_AT_ONCE always come; the caller gives the rest to its next hold.
    """
    time = HoldTime(core)
    for start in range(0, len(part), TAKE_AT_ONCE):
        if start and time.is_over:
            return
        some = part[start : start + TAKE_AT_ONCE]
        yield from zip(some, locate_all(core, [candidate.id for candidate in some]), strict=True)


def _read_states(core: Core, ids: Sequence[bytes]) -> list[MessageState | None]:
    try:
        return core.store.states(ids)
    except FairleadError:
        # A store that was closed meanwhile may call it a fault.
        core.check_open()
        raise


def _read_message(core: Core, message_id: bytes) -> Message | None:
    """Not a page at a time: bodies may be large."""
    try:
        return core.store.messages([message_id])[0]
    except FairleadError:
        core.check_open()
        raise
