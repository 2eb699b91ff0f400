"""A broker delivers in the order of the oracle: the scheduler of the first engine, kept in `tests/oracle`.

Random messages of several keys, weights and throttle keys, claims, completions, releases and waits go through
both. Streams, retries and dead letters are left out: the other laws cover them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fairlead import Complete, Delivery, NewMessage, Release, Settings
from fairlead.testing import ManualClock, open_in_memory
from tests.oracle.fair_queue import Arrival, FairQueue
from tests.property.running import check_law

KEYS = ("a", "b", "c", "d")
BUCKETS = ("t", "u")
messages = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(1, 5), st.sampled_from([(), (), ("t",), ("t", "u")])),
    min_size=1,
    max_size=12,
)


class TheOrderOfDelivery(RuleBasedStateMachine):
    @initialize(
        quantum=st.integers(1, 3),
        unsettled=st.sampled_from([0, 0, 3]),
        rows=st.sampled_from([200_000, 2, 0]),
        rates=st.tuples(st.sampled_from([0.5, 5.0]), st.sampled_from([0.5, 5.0])),
    )
    def open(self, quantum: int, unsettled: int, rows: int, rates: tuple[float, float]) -> None:
        self.clock = ManualClock()
        # The order does not depend on how many messages memory holds.
        self.oracle = FairQueue(quantum=quantum, max_unsettled_per_key=unsettled)
        self.broker = open_in_memory(clock=self.clock, settings=Settings(read_ahead_rows=rows))
        self.broker.create_queue(
            "q", quantum=quantum, max_unsettled_per_key=unsettled, visibility_timeout="7d"
        )
        for name, rate in zip(BUCKETS, rates, strict=True):
            self.broker.config.set(f"throttle:{name}:burst", 3.0)
            self.broker.config.set(f"throttle:{name}:rate", rate)
            self.oracle.set_bucket(name, rate, 3.0, self.clock.monotonic_ms())
        self.held: list[Delivery] = []

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()

    @rule(batch=messages)
    def enqueue(self, batch: list[tuple[str, int, tuple[str, ...]]]) -> None:
        ids = self.broker.enqueue_many(
            "q",
            [
                NewMessage(b"", fairness_key=key, weight=weight, throttle_keys=keys)
                for key, weight, keys in batch
            ],
        )
        arrivals = [Arrival(_raw(id), *one) for id, one in zip(ids, batch, strict=True)]
        self.oracle.add(arrivals)

    @rule(limit=st.integers(1, 15))
    def claim(self, limit: int) -> None:
        taken = self.broker.claim("q", limit=limit)
        assert [_raw(delivery.id) for delivery in taken] == self.oracle.take(limit, self.clock.monotonic_ms())
        self.held += taken

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 1000), verb=st.sampled_from([Complete, Release]))
    def settle(self, pick: int, verb: Any) -> None:
        delivery = self.held.pop(pick % len(self.held))
        assert self.broker.settle([verb(delivery)])[0].ok
        if verb is Complete:
            self.oracle.complete(_raw(delivery.id))
        else:
            self.oracle.release(_raw(delivery.id))

    @rule(ms=st.sampled_from([1, 199, 200, 2000, 30_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms=ms)


def _raw(id: str) -> bytes:
    return bytes.fromhex(id.replace("-", ""))


def test_a_broker_delivers_in_the_order_of_the_oracle() -> None:
    check_law(TheOrderOfDelivery, "the_order_of_the_oracle", examples=60, steps=40)
