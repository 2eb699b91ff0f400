"""The outcomes that a consumer reports for deliveries, and their results."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from fairlead.model.durations import Duration
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id


class Handle(Protocol):
    """Anything that names one delivery: a `Delivery`, a `DeliveryRef` rebuilt from its two strings, or a
    `LeaseRef` from the network.
    """

    @property
    def id(self) -> str: ...

    @property
    def lease(self) -> str: ...


class DeliveryRef(msgspec.Struct, frozen=True, gc=False):
    id: str
    lease: str


class LeaseRef(msgspec.Struct, frozen=True, gc=False):
    """A delivery named by decoded values, so that a door does not format an id for the engine to parse again.

    The values are checked when the item is settled, one by one, and not here.
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
    """The work is done, and the message is deleted or retained."""

    delivery: Handle
    progress: int = 0


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The work failed. `retry_in` and `dead` override the queue's policy, but not its ceiling `max_attempts`.

    `close` names one of the message's throttle keys: for the time `retry_after`, no consumer receives a
    message of that key. The message returns after it, and no attempt is counted.
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
    """Return the message to its place without work; no attempt is counted."""

    delivery: Handle
    keep_order: bool = False


class Extend(msgspec.Struct, frozen=True, gc=False):
    """A heartbeat: the lease now ends `duration` from now (None: the queue's visibility timeout)."""

    delivery: Handle
    duration: Duration | None = None
    progress: int = 0
    carry: bytes | None = None

    def __repr__(self) -> str:
        # Without the carry, which may be secret.
        return f"Extend({self.delivery!r}, duration={self.duration!r}, progress={self.progress})"


class Start(msgspec.Struct, frozen=True, gc=False):
    """Work on an unstarted delivery begins: from now on its expiry is a failure."""

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
    """The result of one item. `rule` names the rule that decided about a failure; `due_ms` is when the
    message returns (0: at once).
    """

    raw_id: bytes
    outcome: Outcome
    rule: str = ""
    due_ms: int = 0
    lease_until: int = 0
    error: str = ""

    @property
    def id(self) -> str:
        """The message's id; "" if the item did not name one."""
        return show_id(self.raw_id) if self.raw_id else ""

    @property
    def ok(self) -> bool:
        return self.outcome not in ("lost_lease", "not_found", "invalid", "store_full")
