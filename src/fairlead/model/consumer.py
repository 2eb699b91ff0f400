"""Durable consumers and their numbered claims. A consumer can ask for a claim again by its number; the claim
does not change until it is closed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.model.names import Scoped

#: The state of a consumer's claim. "filling": the claim is being assembled, and no caller has received it.
#: "closing" and "releasing": the claim has ended, and its messages follow step by step.
Phase = Literal["idle", "filling", "open", "closing", "releasing"]

#: What closing a claim does with members that have no outcome: complete them, or return them to their places.
DefaultOutcome = Literal["complete", "release"]


class ConsumerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored state of a consumer and of its open claim, if it has one.

    `recorded` counts the stored values of outcomes. `queue` is the name it was registered for, which outlives
    a deleted queue; together with `name` it identifies the consumer. `turns` has the latest turn granted for
    each slice of the claim, 0 before the first; it is empty until a slice begins.
    """

    name: str
    queue_id: int
    queue: str
    generation: int
    ttl_ms: int
    seen_ms: int
    last_closed: int = 0
    lost: int = 0
    lost_why: str = ""
    phase: Phase = "idle"
    number: int = 0
    claim_id: int = 0
    messages: int = 0
    bytes: int = 0
    pages: int = 0
    recorded: int = 0
    recorded_bytes: int = 0
    settled: dict[str, int] = {}
    dropping: bool = False
    default_outcome: DefaultOutcome = "complete"
    turns: tuple[int, ...] = ()

    @property
    def key(self) -> Scoped:
        return Scoped(self.queue, self.name)

    @property
    def in_hand(self) -> bool:
        """Whether there is a claim that can still be closed or released."""
        return self.phase in ("filling", "open")

    @property
    def under_way(self) -> bool:
        """Whether a close or a release has steps left."""
        return self.phase in ("closing", "releasing")

    def without_claim(self) -> ConsumerRecord:
        return msgspec.structs.replace(
            self,
            phase="idle",
            number=0,
            claim_id=0,
            messages=0,
            bytes=0,
            pages=0,
            recorded=0,
            recorded_bytes=0,
            turns=(),
        )


class Recorded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a consumer recorded about one member of a claim, stored until the claim is closed.

    "start" and "extend" are no outcomes. A start says that work began; the progress and carry of an extension
    are in the message's state.
    """

    id: bytes
    kind: Literal["complete", "fail", "release", "start", "extend"]
    progress: int = 0
    error: str = ""
    reason: int = 0
    retry_in_ms: int | None = None
    dead: bool = False
    keep_order: bool = False


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A durable consumer as it is shown. Each registration gets a new `generation`, and calls with an older
    one are refused.

    `open` is the number of the open claim (0: none), with its `messages` and `bytes`. `lost` is the last
    claim that ended without being closed (0: none), because an operator released it or `expires_at` passed.
    `default_outcome` is what a close does with messages without an outcome.
    """

    name: str
    queue: str
    generation: int
    last_closed: int
    open: int = 0
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    ttl_ms: int
    seen_at: int
    expires_at: int
    default_outcome: DefaultOutcome = "complete"


class NumberedClaim(msgspec.Struct, frozen=True):
    """A claim with its number. `count` is 0 if nothing was ready; then no claim was made."""

    number: int
    count: int
    bytes: int


class SliceBegun(msgspec.Struct, frozen=True):
    """`again`: work on part of the slice began earlier, under the same claim number. `failed` counts the
    messages that were started then and have no outcome.

    `record` must present `turn` for this slice. A later `begin_slice` of the slice grants a higher turn and
    ends this one.
    """

    again: bool
    failed: int
    turn: int


class CloseResult(msgspec.Struct, frozen=True):
    """`settled` counts the messages by outcome. Closing the last closed claim again returns the same counts,
    so that a caller can repeat the call after a lost answer; earlier claims return none.
    """

    last_closed: int
    settled: dict[str, int]
