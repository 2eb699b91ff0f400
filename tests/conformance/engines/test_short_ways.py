"""Requests about one plain message end in the same rows, answers and memory by their short way and in a transaction.

Two engines get the same random requests. One takes short ways wherever they are open; the other gets each request
inside an open transaction, where none is. Requests that a short way must leave alone are among them: other outcomes,
streams, delays, bounds, throttles, paused and dead-letter queues, handles that are out of date.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release
from fairlead.config import Settings
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.short_ways import ShortWay
from fairlead.errors import FairleadError
from fairlead.model.checks import CheckedColumns, find_columns
from fairlead.model.settle import LeaseRef
from fairlead.request import LOCAL, Answer, Caller, Request
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigSet
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine
from fairlead.verbs.queues import CreateQueue, Pause, Resume, UpdateQueue
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Settle
from tests.conformance.engines.memory_sizes import memory_sizes

RUNS = int(os.environ.get("FAIRLEAD_PROPERTY_EXAMPLES") or 40)
STEPS = 250
#: Options of queues; nearly all queues of nearly all programs are like the first one.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"retain_completed": "1m"},
    {"max_messages": 3},
    {"max_unsettled_per_key": 1},
    {"max_unsettled_per_consumer": 2},
    {"ttl": "3s"},
    {"ordering": "none"},
]
EXTRAS: list[dict[str, Any]] = [
    {"stream": "s"},
    {"delay": "2s"},
    {"ttl": "5s"},
    {"dedup_key": "d"},
    {"throttle_keys": ("slow",)},
    {"headers": {"a": "b"}},
]


class CountingEngine(Engine):
    """Counts the requests that took a short way."""

    taken: Counter[type]
    #: Those while a chunk is cold.
    taken_beside_cold: Counter[type]

    #: Those that had a number.
    taken_in_session: Counter[type]

    def _take(self, short_way: ShortWay, request: Request[Answer], caller: Caller) -> Answer | None:
        answer = super()._take(short_way, request, caller)
        self.taken_in_session[type(request)] += answer is not None and caller.session is not None
        self.taken[type(request)] += answer is not None
        self.taken_beside_cold[type(request)] += answer is not None and self.memory.cold_count > 0
        return answer


class LateClock(ManualClock):
    """Runs no due work: claims meet leases, waits and lives that are over."""

    def subscribe(self, on_advance: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class BothWays:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        kind = self.random.choice([ManualClock, LateClock])
        is_smooth = self.random.random() < 0.6
        self.outcomes = [Complete] if is_smooth else [Complete, Complete, Complete, Fail, Release, Extend]
        self.steps_ms = [1] * 9 + [2500] if is_smooth else [1, 2500]
        self.extras = [one for one in EXTRAS if not is_smooth or "delay" not in one]
        self.clocks = [kind(), kind()]
        self.stores = [DictionaryStore(), DictionaryStore()]
        settings = Settings(lanes_per_queue=self.random.choice([2, 500_000, 500_000]))
        # Both engines draw the same jitter.
        self.engines = [
            CountingEngine(store, clock=clock, rng=Random(0), settings=settings)
            for store, clock in zip(self.stores, self.clocks, strict=True)
        ]
        for engine in self.engines:
            engine.taken, engine.taken_beside_cold, engine.taken_in_session = Counter(), Counter(), Counter()
        #: Requests after which numbers begin; None: there are none.
        self.number: int | None = None
        self.arrived = 0
        #: Deliveries as both engines made them, some of them settled by now.
        self.deliveries: list[tuple[Delivery, Delivery]] = []

    def do(self, make: Callable[[int], Request[Any]]) -> None:
        """`make` gets the index of the engine, whose deliveries the request is about."""
        caller = self.caller()
        short, general = (
            shown(lambda: self.engines[0].do(make(0), caller)),
            shown(lambda: in_transaction(self.engines[1], make(1), caller)),
        )
        assert describe(short) == describe(general)
        if isinstance(short, list):
            pairs = zip(short, general, strict=True)
            self.deliveries += [pair for pair in pairs if isinstance(pair[0], Delivery)]

    def open_session(self) -> None:
        self.do(lambda _: OpenSession("s"))
        self.number = 0

    def caller(self) -> Caller:
        """In a session most requests have the next number, and most answers have arrived."""
        if self.number is None or self.random.random() < 0.2:
            return LOCAL
        if self.random.random() < 0.9:
            self.arrived = self.number
        if self.random.random() < 0.95:
            self.number += 1
        number = self.number or 1
        return LOCAL._replace(session="s", number=number, arrived=min(self.arrived, number - 1))

    def step(self) -> None:
        random = self.random
        queue = random.choice(["q", "q", "q", "other", "missing", "q.dlq"])
        kind = random.random()
        if kind < 0.35:
            weight, key = random.choice([1, 1, 3, 0]), random.choice(["a", "b", "c", ""])
            extra = random.choice(self.extras) if random.random() < 0.1 else {}
            payload = random.randbytes(random.choice([0, 10, 20_000]))
            self.do(lambda _: Enqueue(queue, payload, fairness_key=key, weight=weight, **extra))
        elif kind < 0.4:
            extra = random.choice([{}, {}, *self.extras])
            plain = [NewMessage(b"x", fairness_key=key) for key in "abca"]
            messages: Any = [*plain, NewMessage(b"x", **extra)]
            by_column = find_columns(messages) if random.random() < 0.5 else None
            given = messages if by_column is None else CheckedColumns(by_column)
            self.do(lambda index: EnqueueMany(queue, messages if index else given))
        elif kind < 0.65:
            limit, consumer = random.choice([1, 1, 1, 3]), random.choice(["", "", "c"])
            # Of few tokens, some hold messages already; in a session none is right.
            token = random.choice([None, None, "", *[f"t{number}" for number in range(30)]])
            token = token if self.number is None or random.random() < 0.05 else None
            self.do(lambda _: Claim(queue, limit, consumer=consumer, token=token))
        elif kind < 0.92 and self.deliveries:
            self.settle()
        elif kind < 0.96:
            passed_ms = random.choice(self.steps_ms)
            for clock in self.clocks:
                clock.advance(ms=passed_ms)
        elif kind < 0.98:
            change = random.choice([Pause(queue), Resume(queue), UpdateQueue(queue, {"quantum": 2})])
            self.do(lambda _: change)

    def settle(self) -> None:
        random = self.random
        at = random.randrange(len(self.deliveries))
        pair = self.deliveries[at] if random.random() < 0.2 else self.deliveries.pop(at)
        outcome = random.choice(self.outcomes)
        again = random.random() < 0.05
        named = [named_by_id(pair[0]) if random.random() < 0.5 else pair[0], pair[1]]
        self.do(lambda index: Settle([outcome(named[index])] * (2 if again else 1)))


def named_by_id(delivery: Delivery) -> LeaseRef:
    """As a door names it."""
    return LeaseRef(delivery.raw_id, delivery.claim_id)


def in_transaction(engine: Engine, request: Request[Any], caller: Caller) -> Any:
    with engine.transaction():
        return engine.do(request, caller)


def shown(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except FairleadError as refusal:
        return f"{refusal!r} {refusal}"


def describe(answer: Any) -> Any:
    if isinstance(answer, list):
        return [describe(one) for one in answer]
    if not isinstance(answer, Delivery):
        return answer
    named = (
        "id",
        "lease",
        "queue",
        "lease_until",
        "deliveries",
        "source",
        "payload",
        "fairness_key",
        "weight",
        "attempts",
        "carry",
        "failures",
        "progress",
    )
    return {name: getattr(answer, name) for name in named}


def rows_of(store: DictionaryStore) -> dict[Table, list[tuple[bytes, bytes]]]:
    """Without the mark of the clock, which names the clock."""
    return {table: store.scan(table, limit=100_000) for table in Table if table is not Table.META}


def turns_of(engine: Engine) -> list[list[str]]:
    return [queue.schedule.ring() for queue in engine.memory.by_id.values()]


def add_cold_messages(both: BothWays) -> None:
    """What nearly every store has: dead letters, and messages that wait for a time or for tokens."""
    dead = [NewMessage(b"dead", fairness_key=key) for key in "ab"]
    both.do(lambda _: Quarantine("other", dead, "no use"))
    both.do(lambda _: Enqueue("q", b"later", delay="1h"))
    both.do(lambda _: Enqueue("other", b"later", delay="1h", fairness_key="a"))


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(RUNS), ids=lambda seed: f"seed{seed}-")
def test_a_short_way_ends_like_a_transaction(seed: int) -> None:
    # With little memory most messages are cold.
    with memory_sizes(seed):
        both = BothWays(seed)
        options = OPTIONS[seed % len(OPTIONS)]
        both.do(lambda _: CreateQueue("q", {"visibility_timeout": "4s", **options}))
        both.do(lambda _: CreateQueue("other", {}))
        both.do(lambda _: ConfigSet("throttle:slow:rate", "1"))
        if seed % 4:
            add_cold_messages(both)
        if seed % 3 == 0:
            both.open_session()
        for at in range(STEPS):
            both.step()
            if at % 10 == 0:
                assert rows_of(both.stores[0]) == rows_of(both.stores[1])
                assert broken_laws(both.engines[0]) == []
                assert turns_of(both.engines[0]) == turns_of(both.engines[1])
        assert rows_of(both.stores[0]) == rows_of(both.stores[1])
        if seed % 4:
            assert sum(both.engines[0].taken_beside_cold.values())
        if seed % 3 == 0:
            assert sum(both.engines[0].taken_in_session.values())


@pytest.mark.parametrize("is_beside_cold", [False, True])
def test_short_ways_are_taken_for_plain_messages_and_not_inside_a_transaction(is_beside_cold: bool) -> None:
    both = BothWays(0)
    both.do(lambda _: CreateQueue("q", {}))
    both.do(lambda _: CreateQueue("other", {}))
    if is_beside_cold:
        add_cold_messages(both)
        assert both.engines[0].memory.cold_count
    short = both.engines[0]
    short.taken.clear()
    for _ in range(3):
        both.do(lambda _: Enqueue("q", b"x"))
        both.do(lambda _: Claim("q"))
        pair = both.deliveries.pop()
        both.do(lambda index, pair=pair: Settle([Complete(pair[index])]))  # type: ignore[misc]
        batch = [NewMessage(b"x", fairness_key=key) for key in "abc"]
        both.do(lambda _, batch=batch: EnqueueMany("q", batch))  # type: ignore[misc]
        both.do(lambda _: Claim("q", 3))
        pairs, both.deliveries = both.deliveries, []
        both.do(lambda index, pairs=pairs: Settle([Complete(pair[index]) for pair in pairs]))  # type: ignore[misc]
        both.do(lambda _: Enqueue("q", b"x", delay="2s"))
        both.do(lambda _: EnqueueMany("q", [NewMessage(b"x"), NewMessage(b"x", delay="2s")]))
        both.do(lambda _: Claim("q"))
        pair = both.deliveries.pop()
        both.do(lambda index, pair=pair: Settle([Fail(pair[index], "no use")]))  # type: ignore[misc]
        both.do(lambda _: Claim("q"))
        pair = both.deliveries.pop()
        both.do(lambda index, pair=pair: Settle([Complete(pair[index])]))  # type: ignore[misc]
    assert short.taken == {Enqueue: 6, EnqueueMany: 6, Claim: 12, Settle: 12}
    assert not any(both.engines[1].taken.values())
    assert rows_of(both.stores[0]) == rows_of(both.stores[1])


def test_a_claim_reads_on_in_its_short_way() -> None:
    with patch.object(cold, "HOT_MESSAGES", 0):
        both = BothWays(0)
        both.do(lambda _: CreateQueue("q", {}))
        for _ in range(3):
            both.do(lambda _: Enqueue("q", b"x"))
        taken = both.engines[0].taken
        assert taken[Enqueue] == both.engines[0].memory.cold_count == 3
        claim_and_complete(both, 3)
        assert taken[Claim] == taken[Settle] == 3
        assert rows_of(both.stores[0]) == rows_of(both.stores[1])


def test_completions_of_messages_whose_chunks_are_not_in_memory_go_the_general_way() -> None:
    with patch.multiple(cold, HOT_MESSAGES=0, CACHED_MESSAGES=0):
        both = BothWays(0)
        both.do(lambda _: CreateQueue("q", {}))
        for _ in range(3):
            both.do(lambda _: Enqueue("q", b"x"))
        claim_and_complete(both, 3)
        taken = both.engines[0].taken
        # A claim reads the chunks of its messages.
        assert (taken[Enqueue], taken[Claim], taken[Settle]) == (3, 3, 0)
        assert not both.engines[0].memory.by_name["q"].counts.messages
        assert rows_of(both.stores[0]) == rows_of(both.stores[1])


def test_a_claim_that_lacks_many_lanes_takes_the_short_way_once_they_are_read() -> None:
    with patch.multiple(cold, HOT_MESSAGES=0), patch.object(cold, "STEP_LANES", 2):
        both = BothWays(0)
        both.do(lambda _: CreateQueue("q", {}))
        both.do(lambda _: EnqueueMany("q", [NewMessage(b"x", fairness_key=key) for key in "abc"]))
        both.do(lambda _: Claim("q", 3))
        assert both.engines[0].taken[Claim] == 1
        assert len(both.deliveries) == 3
        assert rows_of(both.stores[0]) == rows_of(both.stores[1])


def claim_and_complete(both: BothWays, count: int) -> None:
    for _ in range(count):
        both.do(lambda _: Claim("q"))
        pair = both.deliveries.pop()
        both.do(lambda index, pair=pair: Settle([Complete(pair[index])]))  # type: ignore[misc]


def two_messages(late: bool) -> BothWays:
    """One chunk with a message that is leased and one that is not."""
    both = next(one for one in map(BothWays, range(100)) if isinstance(one.clocks[0], LateClock) == late)
    both.do(lambda _: CreateQueue("q", {"visibility_timeout": "4s"}))
    both.do(lambda _: EnqueueMany("q", [NewMessage(b"first"), NewMessage(b"second")]))
    both.do(lambda _: Claim("q"))
    return both


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("spoils", ["claim", "id", "length", "type", "message", "twice"])
def test_completions_by_id_take_the_short_way_unless_something_is_wrong(spoils: str, is_whole: bool) -> None:
    """`is_whole`: all messages of a claim are named, which takes another look."""
    both = BothWays(0)
    both.do(lambda _: CreateQueue("q", {}))
    both.do(lambda _: EnqueueMany("q", [NewMessage(b"x", fairness_key=key) for key in "abc"]))
    if not is_whole:
        both.do(lambda _: Enqueue("q", b"y"))
    both.do(lambda _: Claim("q", 4))
    refs = [[named_by_id(pair[index]) for pair in both.deliveries] for index in (0, 1)]
    both.engines[0].taken.clear()
    before = refs[0][2]
    wrong: dict[str, Any] = {
        "claim": LeaseRef(before.raw_id, before.claim_id + 1),
        "id": LeaseRef(before.raw_id[:-1] + b"\xff", before.claim_id),
        "length": LeaseRef(before.raw_id[:8], before.claim_id),
        "type": LeaseRef(before.raw_id, float(before.claim_id)),  # type: ignore[arg-type]
        "message": LeaseRef(bytes(8) + before.raw_id[8:], before.claim_id),
        "twice": refs[0][1],
    }
    spoilt = [*refs[0][:2], wrong[spoils]]
    both.do(lambda index: Settle([Complete(ref) for ref in spoilt]))
    assert both.engines[0].taken[Settle] == 0
    assert rows_of(both.stores[0]) == rows_of(both.stores[1])
    both.do(lambda index: Settle([Complete(ref) for ref in refs[index][2:]]))
    assert both.engines[0].taken[Settle] == 1
    assert rows_of(both.stores[0]) == rows_of(both.stores[1])


def test_a_handle_that_is_out_of_date_completes_nothing() -> None:
    both = two_messages(late=False)
    before = both.deliveries[0]
    both.do(lambda index: Settle([Release(before[index], keep_order=True)]))
    both.do(lambda _: Claim("q"))
    assert both.deliveries[1][0].payload == b"first"
    both.do(lambda index: Settle([Complete(before[index])]))
    assert rows_of(both.stores[0]) == rows_of(both.stores[1])


def test_a_lease_that_is_over_ends_before_the_next_claim() -> None:
    both = two_messages(late=True)
    for clock in both.clocks:
        clock.advance(ms=5000)
    both.do(lambda _: Claim("q"))
    assert rows_of(both.stores[0]) == rows_of(both.stores[1])
