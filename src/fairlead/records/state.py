"""What is known of a message that something happened to, and how many messages of a queue are where."""

from __future__ import annotations

import msgspec

from fairlead.model.message import MessageState


class OwnState(MessageState, frozen=True, array_like=True, gc=False):
    """A message with a row of its own. It is ready at `place` or waiting until `due_ms`, unless `claim_id`
    names the claim that holds it; then `place` is where a release returns it to.
    """

    claim_id: int = 0


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
