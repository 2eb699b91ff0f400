"""The state of a message that changed alone, and the counts of a queue's messages by state."""

from __future__ import annotations

import msgspec

from fairlead.model.message import MessageState


class OwnState(MessageState, frozen=True, array_like=True, gc=False):
    """A message with a row of its own. It is ready at `place` or waiting until `due_ms`, unless `claim_id`
    names the claim that holds it; then `place` is where a release returns it.

    A completed message that is retained (`done_ms`) has no place. `keeps_key`: its dedup key is remembered
    while it is retained. `returns` counts how often it closed a throttle key and returned without an attempt.
    """

    claim_id: int = 0
    keeps_key: bool = False
    returns: int = 0


class DedupRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The message that a dedup key stands for, until that time; 0: while the message lives."""

    raw_id: bytes
    until_ms: int

    def holds(self, now_ms: int) -> bool:
        return self.until_ms == 0 or self.until_ms > now_ms


class RunRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Ready messages of a lane that memory need not hold.

    Either up to `count` messages of the cold chunk whose first message in this lane is `number`; or, with a
    count of 0, the message `number`, which has a row of its own. `weight` is that of the last of them.
    `is_alone`: the chunk has no other message, so this one is implied while the row exists.
    """

    number: int
    count: int
    weight: int
    is_alone: bool = False


class MemberRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Live messages of a stream that memory need not hold.

    Either the messages of the cold chunk whose first message in this stream is `number`, `count` of them at
    first; or, with a count of 0, the message `number`, which has a row of its own. `key` is the fairness key
    of the stream.
    """

    number: int
    count: int
    key: str


class Counts(msgspec.Struct, array_like=True, gc=False):
    """Absolute values, written with each commit that changes them, so they are exact after a crash."""

    ready: int = 0
    waiting: int = 0
    leased: int = 0
    done: int = 0
    bytes: int = 0
    #: Chunks of a queue and its dead letters whose heads are not read at open.
    cold: int = 0

    @property
    def messages(self) -> int:
        return self.ready + self.waiting + self.leased
