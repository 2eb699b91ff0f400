"""What is known of a message that something happened to, and how many messages of a queue are where."""

from __future__ import annotations

import msgspec

from fairlead.model.message import MessageState


class OwnState(MessageState, frozen=True, array_like=True, gc=False):
    """A message with a row of its own. It is ready at `place` or waiting until `due_ms`, unless `claim_id`
    names the claim that holds it; then `place` is where a release returns it to.
    """

    claim_id: int = 0


class DedupRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The message that a dedup key stands for, until that time; 0: as long as the message lives."""

    raw_id: bytes
    until_ms: int

    def holds(self, now_ms: int) -> bool:
        return self.until_ms == 0 or self.until_ms > now_ms


class Counts(msgspec.Struct, array_like=True, gc=False):
    """Absolute values, written with each commit that changes them, so they are exact after a crash."""

    ready: int = 0
    waiting: int = 0
    leased: int = 0
    done: int = 0
    bytes: int = 0

    @property
    def messages(self) -> int:
        return self.ready + self.waiting + self.leased
