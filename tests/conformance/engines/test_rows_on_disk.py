"""Messages that wait, are held or are dead cost no memory while the engine goes on, nor when it is opened again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead import NewMessage
from fairlead.engine import cold
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock

MESSAGES = 1_000
#: Those that are asked for first stay in memory.
KEPT = cold.WINDOW_MESSAGES


def enqueue(broker: Broker, **traits: str) -> list[str]:
    return broker.enqueue_many("q", [NewMessage(b"%d" % n, **traits) for n in range(MESSAGES)])  # type: ignore[arg-type]


def bury(broker: Broker) -> None:
    ids = enqueue(broker)
    for start in range(0, MESSAGES, 100):
        broker.bury("q", ids[start : start + 100])


def hold(broker: Broker) -> None:
    broker.hold("q", enqueue(broker))


def redrive(broker: Broker) -> None:
    assert broker.redrive("q").matched == MESSAGES
    broker.run_due()


def unhold(broker: Broker) -> None:
    more = True
    while more:
        more = bool(
            broker.unhold("q", [one.id for one in broker.peek("q", where="waiting", limit=500)]).changed
        )


def pass_time(broker: Broker) -> None:
    broker.clock.advance(seconds=120)  # type: ignore[attr-defined]
    broker.run_due()


@pytest.mark.parametrize(
    ("put", "bring_back"),
    [
        (bury, redrive),
        (hold, unhold),
        (lambda broker: enqueue(broker, delay="1m"), pass_time),
    ],
    ids=["dead", "held", "waiting"],
)
def test_messages_that_nobody_can_claim_are_not_in_memory(
    put: Callable[[Broker], None], bring_back: Callable[[Broker], None]
) -> None:
    data, clock = DictionaryData(), ManualClock()
    broker = Broker(DictionaryStore(data), clock=clock)
    broker.create_queue("q")
    put(broker)
    assert len(broker.engine.memory.own) <= KEPT
    assert broker.engine.memory.hot_messages == 0
    assert broken_laws(broker.engine) == []
    broker.close()
    again = Broker(DictionaryStore(data), clock=clock)
    assert len(again.engine.memory.own) <= KEPT
    assert again.engine.memory.hot_messages == 0
    bring_back(again)
    assert [one.payload for one in again.claim("q", limit=MESSAGES)] == [b"%d" % n for n in range(MESSAGES)]
    assert broken_laws(again.engine) == []


def test_dead_letters_go_out_in_the_order_of_their_deaths_wherever_they_are() -> None:
    broker = Broker(DictionaryStore(), clock=ManualClock())
    broker.create_queue("q")
    bury(broker)
    first = broker.claim("q.dlq", limit=10)
    broker.bury("q", broker.enqueue_many("q", [NewMessage(b"last")]))
    rest = broker.claim("q.dlq", limit=2 * MESSAGES)
    found = [one.payload for one in (*first, *rest)]
    assert found == [*(b"%d" % n for n in range(MESSAGES)), b"last"]
    assert broken_laws(broker.engine) == []
