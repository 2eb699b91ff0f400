"""Changed options of a queue take effect for what is there already."""

from __future__ import annotations

from collections import Counter

import pytest

from fairlead import NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import QueueFull
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.queues import CreateQueue, UpdateQueue


def with_backlog(data: DictionaryData, quantum: int) -> Engine:
    engine = Engine(DictionaryStore(data), clock=ManualClock())
    engine.do(CreateQueue("q", {"quantum": quantum}))
    engine.do(EnqueueMany("q", [NewMessage(b"", fairness_key=f"k{n % 3}") for n in range(90)]))
    return engine


def keys_of(engine: Engine, count: int) -> list[str]:
    return [delivery.fairness_key for delivery in engine.do(Claim("q", count))]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 2)])
def test_a_changed_quantum_holds_for_the_backlog_from_the_next_turn_of_each_key_on(
    before: int, after: int
) -> None:
    engine = with_backlog(DictionaryData(), before)
    begun = keys_of(engine, 1)
    engine.do(UpdateQueue("q", {"quantum": after}))
    assert broken_laws(engine) == []
    # The key whose turn it is goes on with what it has.
    begun += keys_of(engine, before - 1) if before > 1 else []
    assert begun == ["k0"] * before
    found = keys_of(engine, 3 * after)
    assert [found[at : at + after] for at in range(0, len(found), after)] == [
        [f"k{at}"] * after for at in (1, 2, 0)
    ]
    assert Counter(found) == {"k0": after, "k1": after, "k2": after}


def test_changed_options_survive_a_reopening() -> None:
    data = DictionaryData()
    engine = with_backlog(data, 1)
    engine.do(UpdateQueue("q", {"quantum": 2, "max_messages": 90}))
    engine.close()
    again = Engine(DictionaryStore(data), clock=ManualClock())
    assert keys_of(again, 4) == ["k0", "k0", "k1", "k1"]
    with pytest.raises(QueueFull):
        again.do(Enqueue("q", b"one too many"))
    assert again.do(EnqueueMany("q", [])) == []
    assert broken_laws(again) == []
