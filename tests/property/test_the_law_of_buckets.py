"""A token bucket grants at most one burst plus its rate times the time, in every window, whatever happens in
between.

Random claims, waits, steps of the clock, changes of rate and burst, clean ends, kills, restarts of the
machine, and power cuts that take every claim since the last sync. The law knows nothing of levels: it adds up
what was granted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fairlead import Broker, NewMessage
from fairlead.testing import ManualClock
from tests.property.running import OnMemoryStore, OnRocksStore, check_law

KEY = "t"
RATE, BURST = f"throttle:{KEY}:rate", f"throttle:{KEY}:burst"
SPECK = 1e-6

rates = st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.0, 100.0])
bursts = st.sampled_from([1.0, 2.0, 5.5, 40.0])
steps = st.sampled_from([0, 0, 0, -3_600_000, 3_600_000])


class Grant(NamedTuple):
    count: int
    burst: float
    #: Tokens that the rate has brought by then.
    brought: float


class BucketLaw(RuleBasedStateMachine):
    store: Any

    @initialize(rate=rates, burst=bursts)
    def open(self, rate: float, burst: float) -> None:
        self.clock = ManualClock()
        self.grants: list[Grant] = []
        self.brought = 0.0
        self.rate, self.burst = rate, burst
        self._open()
        self.broker = self._broker()
        self.broker.create_queue("q")
        self.broker.config.set(BURST, burst)
        self.broker.config.set(RATE, rate)
        self.limited = True
        self.sync()

    def _open(self) -> None:
        raise NotImplementedError

    def _reopen(self) -> None:
        raise NotImplementedError

    def _broker(self) -> Broker:
        return self.store.open_broker(clock=self.clock, durability="os")

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()

    # What happens

    @rule(limit=st.sampled_from([1, 3, 100]))
    def claim(self, limit: int) -> None:
        self.broker.enqueue_many("q", [NewMessage(b"", throttle_keys=[KEY]) for _ in range(min(limit, 50))])
        granted = len(self.broker.claim("q", limit=limit))
        if self.limited:
            self.grants.append(Grant(granted, self.burst, self.brought))
            self.check()

    @rule(ms=st.sampled_from([1, 10, 333, 1000, 60_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.brought += self.rate * ms / 1000

    @rule(ms=steps)
    def set_the_clock(self, ms: int) -> None:
        self.clock.jump(ms=ms)

    @rule(rate=rates)
    def set_rate(self, rate: float) -> None:
        self.broker.config.set(RATE, rate)
        self.rate, self.limited = rate, True
        self.sync()

    @rule(burst=bursts)
    def set_burst(self, burst: float) -> None:
        self.broker.config.set(BURST, burst)
        self.burst = burst
        self.sync()

    @precondition(lambda self: self.limited)
    @rule()
    def unset_rate(self) -> None:
        self.broker.config.delete(RATE)
        self.limited = False
        self.sync()

    @rule(away_ms=st.sampled_from([0, 5, 2000]), step_ms=steps)
    def end_well(self, away_ms: int, step_ms: int) -> None:
        self.broker.close()
        self.sync()
        self.wait(away_ms)
        self.clock.jump(ms=step_ms)
        self.start()

    @rule(away_ms=st.sampled_from([0, 5, 2000]), step_ms=steps)
    def kill(self, away_ms: int, step_ms: int) -> None:
        self.drop()
        self.wait(away_ms)
        self.clock.jump(ms=step_ms)
        self.start()

    @rule(
        away_ms=st.sampled_from([0, 5, 2000]),
        step_ms=st.sampled_from([0, 0, -3_600_000]),
        killed=st.booleans(),
    )
    def restart_the_machine(self, away_ms: int, step_ms: int, killed: bool) -> None:
        """A step ahead while it is off is the one thing that nothing can tell from time: it grants a burst
        too many at most.
        """
        if killed:
            self.drop()
        else:
            self.broker.close()
        self.wait(away_ms)
        self.clock = ManualClock(now_ms=self.clock.now_ms() + step_ms)
        self.start()

    @precondition(lambda self: self.store.in_memory)
    @rule(away_ms=st.sampled_from([0, 5, 2000]))
    def cut_the_power(self, away_ms: int) -> None:
        self.drop()
        self.store.restore(self.synced)
        self.wait(away_ms)
        self.clock = ManualClock(now_ms=self.clock.now_ms())
        self.start()

    @precondition(lambda self: self.store.in_memory)
    @rule()
    def sync(self) -> None:
        """What is committed by now survives a power cut. Each change of the configuration is synced before it
        is confirmed.
        """
        self.synced = self.store.snapshot()

    # Helpers

    def drop(self) -> None:
        """Nothing is written any more."""
        self.store.close()
        self.broker.close()

    def start(self) -> None:
        self._reopen()
        self.broker = self._broker()

    def check(self) -> None:
        """Only the windows that end with the last grant are new."""
        last, total, burst = self.grants[-1], 0, 0.0
        for grant in reversed(self.grants):
            total, burst = total + grant.count, max(burst, grant.burst)
            bound = burst + last.brought - grant.brought
            assert total <= bound + SPECK, f"{total} granted where {bound} are allowed"


class InMemory(OnMemoryStore, BucketLaw):
    pass


class OnDisk(OnRocksStore, BucketLaw):
    pass


def test_the_law_of_buckets_holds_in_memory() -> None:
    check_law(InMemory, "the_law_of_buckets_holds_in_memory", examples=150, steps=40)


def test_the_law_of_buckets_holds_on_disk() -> None:
    check_law(OnDisk, "the_law_of_buckets_holds_on_disk", examples=8, steps=30)
