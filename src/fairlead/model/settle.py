"""What a consumer can say about a delivery, and what it is told in return."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from fairlead.model.durations import Duration
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id


class Handle(Protocol):
    """Whatever names one delivery: a `Delivery`, a `DeliveryRef` rebuilt from its two strings, a `LeaseRef`
    off the wire.
    """

    @property
    def id(self) -> str: ...

    @property
    def lease(self) -> str: ...


class DeliveryRef(msgspec.Struct, frozen=True, gc=False):
    id: str
    lease: str


class LeaseRef(msgspec.Struct, frozen=True, gc=False):
    """A delivery by what its two strings stand for, so that a door makes no text of an id for the engine to
    read again.

    Its parts are checked where it is settled, item by item, and not here.
    """

    raw_id: bytes
    claim_id: int

    @property
    def id(self) -> str:
        return show_id(self.raw_id)

    @property
    def lease(self) -> str:
        return f"{self.claim_id:x}"


class Complete(msgspec.Struct, frozen=True, gc=False):
    """The work is done; the message is gone."""

    delivery: Handle
    progress: int = 0


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The work failed. `retry_in` and `dead` beat the queue's policy (but not its ceiling `max_attempts`).

    With `close`, one of the message's throttle keys, nobody gets a message of that key for the time `retry_after`. The
    message comes back then, and no attempt is counted.
    """

    delivery: Handle
    error: str = ""
    reason: FailureReason | str | int = FailureReason.UNKNOWN
    progress: int = 0
    retry_in: Duration | None = None
    dead: bool = False
    retry_after: Duration | None = None
    close: str | None = None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give it back unworked, at its old place; no attempt is counted."""

    delivery: Handle
    keep_order: bool = False


class Extend(msgspec.Struct, frozen=True, gc=False):
    """A heartbeat: the lease now ends `duration` from now (the queue's visibility timeout when None)."""

    delivery: Handle
    duration: Duration | None = None
    progress: int = 0
    carry: bytes | None = None

    def __repr__(self) -> str:
        # Not the carry: it may be secret.
        return f"Extend({self.delivery!r}, duration={self.duration!r}, progress={self.progress})"


class Start(msgspec.Struct, frozen=True, gc=False):
    """Work on an unstarted delivery begins: from here on its expiry is a failure."""

    delivery: Handle


Settlement = Complete | Fail | Release | Extend | Start

Outcome = Literal[
    "completed",
    "retry",
    "dead",
    "released",
    "expired",
    "extended",
    "started",
    "lost_lease",
    "not_found",
    "invalid",
    "store_full",
    "returned",
]


class SettleResult(msgspec.Struct, frozen=True, gc=False):
    """One item's result. `rule` names the deciding rule of a failure, `due_ms` when it comes back (0: at
    once).
    """

    raw_id: bytes
    outcome: Outcome
    rule: str = ""
    due_ms: int = 0
    lease_until: int = 0
    error: str = ""

    @property
    def id(self) -> str:
        """The message's id; "" when the item did not name one."""
        return show_id(self.raw_id) if self.raw_id else ""

    @property
    def ok(self) -> bool:
        return self.outcome not in ("lost_lease", "not_found", "invalid", "store_full")
