"""The whole life of a message on one screen. The diagram in the docs and the exhaustive test derive from this
table.
"""

from __future__ import annotations

from enum import Enum


class Where(Enum):
    """A message is in exactly one of these places. A dead letter is `READY` in a `.dlq`; a held one is
    `WAITING` without end.
    """

    READY = "ready"
    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"


NOWHERE = None

#: event -> (places it may leave, places it may enter). None is "not stored".
TRANSITIONS: dict[str, tuple[frozenset[Where | None], frozenset[Where | None]]] = {
    "enqueued": (frozenset({NOWHERE}), frozenset({Where.READY, Where.WAITING})),
    "quarantined": (frozenset({NOWHERE}), frozenset({Where.READY})),
    "leased": (frozenset({Where.READY}), frozenset({Where.LEASED})),
    "completed": (frozenset({Where.LEASED, Where.READY, Where.WAITING}), frozenset({NOWHERE, Where.DONE})),
    "released": (frozenset({Where.LEASED}), frozenset({Where.READY})),
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
