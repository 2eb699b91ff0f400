"""A durable consumer takes its messages in numbered claims: each can be asked for again, and stays as it is
until it is closed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.model.names import Scoped

#: What is going on with the claim of a consumer that is not over. "filling": it is being put together, and
#: nobody was told of it yet. "closing" and "releasing": it is over, and its messages follow step by step.
Phase = Literal["idle", "filling", "open", "closing", "releasing"]

#: What the close of a claim does with members that nobody spoke of: they are done, or they go back to their
#: places.
DefaultOutcome = Literal["complete", "release"]


class ConsumerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a consumer, and of the one claim that it may have in hand.

    `recorded` counts the values of outcomes stored so far. `queue` is the name it was registered for, which a
    deleted queue no longer has; with `name` it identifies the consumer. `turns` has the latest turn granted for
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
        """There is a claim that can still be closed or let go of."""
        return self.phase in ("filling", "open")

    @property
    def under_way(self) -> bool:
        """A close or release has steps left."""
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
    """What was said about one member of a claim, as it is stored until the claim is closed.

    "start" and "extend" are no outcomes: work on it began; its progress (and carry) went into its state.
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
    """`generation` fences: whoever registers gets a new one, and everybody with an older one is refused.

    `open` is the number of the claim that is not closed yet (0: none), with its `messages` and `bytes`.
    `lost` is the last claim that was let go of without being closed (0: none): by an operator, or because
    `expires_at` had come. `default_outcome` is what a close does with messages without an outcome.
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
    """`count` 0: nothing was there to hand out, and nothing was made."""

    number: int
    count: int
    bytes: int


class SliceBegun(msgspec.Struct, frozen=True):
    """`again`: work on some of the slice began earlier, under the same claim number. `failed` counts the
    messages that were begun then and have no outcome. `turn` is what `record` must show for this slice: a later
    `begin_slice` of it grants a higher one and ends this one.
    """

    again: bool
    failed: int
    turn: int


class CloseResult(msgspec.Struct, frozen=True):
    """`settled` counts what became of the messages, by outcome. The last closed claim gives the same when it
    is closed again, so that a lost answer can be asked for; those before it give nothing.
    """

    last_closed: int
    settled: dict[str, int]
