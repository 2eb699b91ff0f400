"""A queue is gone for everybody as soon as its name is, whatever its deletion has still to clear away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from fairlead.engine.broker import Broker
from fairlead.errors import QueueNotFound, StoreFull
from fairlead.model.facts import Fact
from fairlead.store.memory import MemoryStore
from fairlead.store.port import NO_EPOCHS
from fairlead.testing import ManualClock


class FullAfter(MemoryStore):
    """Takes so many more commits, then the disk is full."""

    commits_left = 1_000

    def commit(self, facts: Sequence[Fact], epochs: Mapping[int, int] = NO_EPOCHS) -> int:
        if not self.commits_left:
            raise StoreFull("here", 0, 0)
        self.commits_left -= 1
        return super().commit(facts, epochs)


def test_a_claim_token_shows_nothing_of_a_queue_whose_deletion_has_begun() -> None:
    store = FullAfter()
    with Broker(store, clock=ManualClock()) as broker:
        broker.create_queue("q")
        broker.enqueue("q", b"x")
        assert len(broker.claim("q", token="t")) == 1
        store.commits_left = 1  # the name goes, the messages stay for now
        with pytest.raises(StoreFull):
            broker.delete_queue("q")
        with pytest.raises(QueueNotFound):
            broker.claim("q", token="t")
