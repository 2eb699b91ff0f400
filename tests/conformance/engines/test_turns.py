"""A gathered transaction says when it is full, and a request that would fill one by itself runs alone."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.transaction import MAX_TURN_BYTES, MAX_TURN_MS, MAX_TURN_REQUESTS
from fairlead.engine.turns import MAX_TURN_ITEMS, runs_alone
from fairlead.errors import QueueNotFound
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue, Purge
from fairlead.verbs.settle import Settle


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    made = Engine(DictionaryStore(), clock=clock)
    made.do(CreateQueue("q"))
    return made


def test_a_transaction_is_full_after_so_many_requests(engine: Engine) -> None:
    with engine.transaction() as tx:
        for _ in range(MAX_TURN_REQUESTS):
            assert not tx.is_full
            engine.do(Stats("q"))
        assert tx.is_full


def test_refused_requests_count_too(engine: Engine) -> None:
    with engine.transaction() as tx:
        for _ in range(MAX_TURN_REQUESTS):
            with pytest.raises(QueueNotFound):
                engine.do(Enqueue("unknown", b"x"))
        assert tx.is_full


def test_a_transaction_is_full_after_so_many_bytes(engine: Engine) -> None:
    with engine.transaction() as tx:
        for _ in range(4):
            assert not tx.is_full
            engine.do(EnqueueMany("q", [NewMessage(bytes(MAX_TURN_BYTES // 8))] * 2))
        assert tx.is_full


def test_a_transaction_is_full_after_so_much_time(engine: Engine, clock: ManualClock) -> None:
    clock.advance(ms=1000)
    with engine.transaction() as tx:
        clock.advance(ms=MAX_TURN_MS - 1)
        assert not tx.is_full
        clock.advance(ms=1)
        assert tx.is_full
    with engine.transaction() as tx:
        assert not tx.is_full


ITEM: Any = Complete(None)  # type: ignore[arg-type]
MESSAGES = [NewMessage(b"x")] * (MAX_TURN_ITEMS + 1)
LARGE: dict[str, Request[Any]] = {
    "a verb in steps": Purge("q"),
    "a claim": Claim("q", MAX_TURN_ITEMS + 1),
    "a settle": Settle([ITEM] * (MAX_TURN_ITEMS + 1)),
    "messages": EnqueueMany("q", MESSAGES),
    "dead letters": Quarantine("q", MESSAGES),
    "bytes": EnqueueMany("q", [NewMessage(bytes(MAX_TURN_BYTES)), NewMessage(b"x")]),
    "an exchange": Exchange([Settle([]), EnqueueMany("q", MESSAGES)]),
}
SMALL: list[Request[Any]] = [
    Enqueue("q", b"x"),
    Claim("q", MAX_TURN_ITEMS),
    Settle([ITEM] * MAX_TURN_ITEMS),
    EnqueueMany("q", MESSAGES[1:]),
    Exchange([Settle([]), Claim("q")]),
    CreateQueue("another"),
]


@pytest.mark.parametrize("name", LARGE)
def test_a_request_that_would_fill_a_turn_runs_alone(name: str) -> None:
    assert runs_alone(LARGE[name])


@pytest.mark.parametrize("request_", SMALL, ids=lambda one: type(one).__name__)
def test_other_requests_join(request_: Request[Any]) -> None:
    assert not runs_alone(request_)


def test_a_malformed_request_is_left_to_its_verb() -> None:
    malformed: Any = 5
    for request in (Settle(malformed), EnqueueMany("q", malformed), EnqueueMany("q", [malformed])):
        assert not runs_alone(request)
