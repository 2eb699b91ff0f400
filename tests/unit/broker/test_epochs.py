"""Every commit says for which queues this broker speaks, so that a store shared by several can refuse a
former owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead import Broker, Complete
from fairlead.model.facts import Fact
from fairlead.store.memory import MemoryStore
from fairlead.store.port import NO_EPOCHS
from fairlead.testing import ManualClock


class Listening(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[int, int]] = []

    def commit(self, facts: Sequence[Fact], epochs: Mapping[int, int] = NO_EPOCHS) -> int:
        self.heard.append(dict(epochs))
        return super().commit(facts, epochs)


def test_each_commit_carries_the_epochs_of_the_queues_the_broker_owns() -> None:
    store = Listening()
    broker = Broker(store, clock=ManualClock())
    broker.create_queue("q")
    broker.enqueue("q", b"")
    broker.settle([Complete(delivery) for delivery in broker.claim("q")])
    owned = {record.queue_id: store.acquire(record.queue_id) for record in store.queues()}
    assert store.heard[1:] == [owned, owned, owned]
    broker.delete_queue("q")
    broker.create_queue("r")
    assert store.heard[-1] == {}
