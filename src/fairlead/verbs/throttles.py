"""Closed throttle keys. Throttle keys belong to all queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.fields import ErrorText, lasting
from fairlead.model.access import EVERYTHING, Right
from fairlead.model.durations import Duration
from fairlead.model.limits import MAX_KEY_BYTES
from fairlead.model.throttle import ClosedThrottle
from fairlead.request import Answer, Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights

ThrottleKey = Annotated[str, Meta(description="A throttle key.", min_length=1, max_length=MAX_KEY_BYTES)]


class ThrottleRequest(Request[Answer], frozen=True):
    """A request about throttle keys, which needs the right to administrate all queues."""

    def authorize(self, rights: Rights) -> Request[Answer]:
        rights.need_pattern(Right.ADMIN, EVERYTHING)
        return self


@verb("throttles")
class Throttles(ThrottleRequest[list[ClosedThrottle]], frozen=True):
    """The throttle keys that are closed or opening: since when, until when, by whom and why."""

    repeatable = True


@verb("close_throttle")
class CloseThrottle(ThrottleRequest[ClosedThrottle], frozen=True):
    """Close a throttle key: for that time, no consumer receives its messages. Then it opens step by step. A
    key that is already closed for longer stays so.
    """

    audited = True
    repeatable = True
    room = Room.GROWS

    key: ThrottleKey
    duration: Annotated[Duration, lasting("How long the key is closed.", at_least_ms=1)]
    error: ErrorText = "closed by an operator"


@verb("open_throttle")
class OpenThrottle(ThrottleRequest[bool], frozen=True):
    """Open a closed throttle key at once and fully. Returns False if it was not closed."""

    audited = True
    repeatable = True
    room = Room.FITS

    key: ThrottleKey
