"""The whole life of a message in one table. The reducer refuses any step that is not in it; the diagram in
the docs and the exhaustive test derive from it.
"""

from __future__ import annotations

from enum import StrEnum

from fairlead.errors import BrokenInvariant
from fairlead.model.message import MessageState


class Where(StrEnum):
    """The state of a message: it is in exactly one of these. A dead letter is `READY` in a `.dlq`; a held
    message is `WAITING` without an end.
    """

    READY = "ready"
    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"


NOWHERE = None

#: event -> (states it may leave, states it may enter). None means "not stored".
TRANSITIONS: dict[str, tuple[frozenset[Where | None], frozenset[Where | None]]] = {
    "enqueued": (frozenset({NOWHERE}), frozenset({Where.READY, Where.WAITING})),
    "quarantined": (frozenset({NOWHERE}), frozenset({Where.READY})),
    "leased": (frozenset({Where.READY}), frozenset({Where.LEASED})),
    "completed": (frozenset({Where.LEASED, Where.READY, Where.WAITING}), frozenset({NOWHERE, Where.DONE})),
    "released": (frozenset({Where.LEASED}), frozenset({Where.READY})),
    "returned": (frozenset({Where.LEASED}), frozenset({Where.READY})),
    "retried": (frozenset({Where.LEASED}), frozenset({Where.READY})),
    "delayed": (frozenset({Where.LEASED}), frozenset({Where.WAITING})),
    "due": (frozenset({Where.WAITING}), frozenset({Where.READY})),
    "held": (frozenset({Where.READY, Where.LEASED, Where.WAITING}), frozenset({Where.WAITING})),
    "buried": (frozenset({Where.LEASED, Where.READY, Where.WAITING}), frozenset({Where.READY})),
    "redriven": (frozenset({Where.READY}), frozenset({Where.READY})),
    "promoted": (frozenset({Where.READY}), frozenset({Where.READY})),
    "demoted": (frozenset({Where.READY}), frozenset({Where.READY})),
    "expired": (frozenset({Where.READY, Where.WAITING, Where.LEASED, Where.DONE}), frozenset({NOWHERE})),
    "dropped": (frozenset({Where.READY, Where.WAITING, Where.LEASED, Where.DONE}), frozenset({NOWHERE})),
}

#: Each single step: the event, the state that it leaves, the state that it enters.
_STEPS = frozenset(
    (event, source, target)
    for event, (sources, targets) in TRANSITIONS.items()
    for source in sources
    for target in targets
)


# Read at each move of a message. Looking up a member of an enumeration takes longer than a module's own name.
_READY, _WAITING, _LEASED, _DONE = Where


def place_of(state: MessageState, *, is_leased: bool) -> Where:
    if is_leased:
        return _LEASED
    if state.done_ms:
        return _DONE
    return _WAITING if state.due_ms else _READY


def check_step(event: str, source: Where | None, target: Where | None) -> None:
    if (event, source, target) not in _STEPS:
        raise BrokenInvariant(f"expected a step of the lifecycle, got {event!r} from {source} to {target}")
