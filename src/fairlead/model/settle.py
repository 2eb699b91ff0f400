"""What a consumer can say about a delivery, and what it is told in return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from fairlead.model.durations import Duration
from fairlead.model.failure import FailureReason


class Handle(Protocol):
    """Whatever names one delivery: a `Delivery`, or a `DeliveryRef` rebuilt from its two strings."""

    @property
    def id(self) -> str: ...

    @property
    def lease(self) -> str: ...


@dataclass(frozen=True, slots=True)
class DeliveryRef:
    id: str
    lease: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The work is done; the message is gone."""

    delivery: Handle
    progress: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """The work failed. `retry_in` and `dead` beat the queue's policy (but not its ceiling `max_attempts`)."""

    delivery: Handle
    error: str = ""
    reason: FailureReason | str | int = FailureReason.UNKNOWN
    progress: int = 0
    retry_in: Duration | None = None
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Give it back unworked, at its old place; no attempt is counted."""

    delivery: Handle
    keep_order: bool = False


@dataclass(frozen=True, slots=True)
class Extend:
    """A heartbeat: the lease now ends `duration` from now (the queue's visibility timeout when None)."""

    delivery: Handle
    duration: Duration | None = None
    progress: int = 0
    carry: bytes | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Work on an unstarted delivery begins: from here on its expiry is a failure."""

    delivery: Handle


Settlement = Complete | Fail | Release | Extend | Start

Outcome = Literal["completed", "retry", "dead", "released", "extended", "started", "lost_lease", "not_found", "invalid"]


@dataclass(frozen=True, slots=True)
class SettleResult:
    """One item's result. `rule` names the deciding rule of a failure, `due_ms` when it comes back (0: at once)."""

    id: str
    outcome: Outcome
    rule: str = ""
    due_ms: int = 0
    lease_until: int = 0
    error: str = field(default="")

    @property
    def ok(self) -> bool:
        return self.outcome not in ("lost_lease", "not_found", "invalid")
