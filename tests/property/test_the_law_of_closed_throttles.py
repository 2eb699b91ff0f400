"""No message of a closed throttle key goes out but the probes, and all of these do: random claims from two queues,
outcomes, waits, lost leases, failed writes, restarts, and acts of operators.

The law is written from the decision about closed keys and knows no ring and no grant: it counts which deliveries are
probes and how many may be out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from fairlead import Complete, Fail, NewMessage, Release, errors
from fairlead.model.delivery import Delivery
from fairlead.testing import CommitStep
from fairlead.testing.steps import ignore
from tests.integration.world import World

KEY = "api"
QUEUES = ("q", "r")
LEASE_MS = 5_000
STEPS = 250
SEEDS = range(1, 1 + int(os.environ.get("FAIRLEAD_PROPERTY_EXAMPLES") or 25))


@dataclass
class Closed:
    until_ms: int
    at_once: int = 1
    answered: int = 0
    probes: set[str] = field(default_factory=set)

    def room(self, now_ms: int) -> int:
        return 0 if now_ms < self.until_ms else max(0, self.at_once - len(self.probes))


class Law:
    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.closed: Closed | None = None
        self.held: dict[str, Delivery] = {}
        self.ready = dict.fromkeys(QUEUES, 0)
        for queue in QUEUES:
            world.broker.create_queue(queue, visibility_timeout=f"{LEASE_MS}ms")

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    def step(self) -> None:
        act = self.random.choices(
            (
                self.enqueue,
                self.claim,
                self.settle,
                self.wait,
                self.operate,
                self.restart,
                self.lose_a_claim,
            ),
            (4, 12, 12, 4, 0.5, 0.5, 0.5),
        )[0]
        act()
        self.check()

    def enqueue(self) -> None:
        queue, count = self.random.choice(QUEUES), self.random.choice((1, 5, 40))
        self.world.broker.enqueue_many(
            queue,
            [
                NewMessage(
                    b"x",
                    fairness_key=self.random.choice("abc"),
                    weight=self.random.choice((1, 1, 4)),
                    throttle_keys=[KEY],
                )
                for _ in range(count)
            ],
        )
        self.ready[queue] += count

    def claim(self) -> None:
        queue, limit = self.random.choice(QUEUES), self.random.choice((1, 1, 3, 100))
        claimed = self.world.broker.claim(queue, limit=limit)
        expected = min(limit, self.ready[queue])
        if self.closed is not None:
            expected = min(expected, self.closed.room(self.now_ms))
            self.closed.probes.update(delivery.id for delivery in claimed)
        assert len(claimed) == expected
        self.ready[queue] -= len(claimed)
        self.held.update((delivery.id, delivery) for delivery in claimed)

    def settle(self) -> None:
        kind = self.random.choice(("complete", "complete", "complete", "fail", "release", "close"))
        count = min(len(self.held), self.random.choice((1, 2) if kind == "close" else (1, 1, 4, 50)))
        some = [self.held.pop(one) for one in self.random.sample(sorted(self.held), count)]
        # A message that came back is behind those that are there.
        if kind == "close" and some:
            after_ms = self.random.choice((10, 1_000, 20_000))
            self.world.broker.settle(
                [Fail(one, "429", retry_after=f"{after_ms}ms", close=KEY) for one in some]
            )
            self.close(self.now_ms + after_ms)
        else:
            make = {"complete": Complete, "fail": Fail, "release": Release, "close": Complete}[kind]
            self.world.broker.settle([make(one) for one in some])
            self.ended([one.id for one in some], is_answer=kind != "release")
        for one in some:
            self.ready[one.queue] += kind not in ("complete",)

    def close(self, until_ms: int) -> None:
        if self.closed is None or until_ms > self.closed.until_ms:
            self.closed = Closed(until_ms)

    def ended(self, ids: list[str], *, is_answer: bool) -> None:
        if self.closed is None:
            return
        ended = self.closed.probes.intersection(ids)
        self.closed.probes -= ended
        self.closed.answered += len(ended) * is_answer
        while self.closed.answered >= self.closed.at_once:
            self.closed.answered -= self.closed.at_once
            self.closed.at_once *= 2
        if self.closed.at_once > 64:
            self.closed = None

    def wait(self) -> None:
        self.world.clock.advance(ms=self.random.choice((1, 10, 500, 990, 4_000, 20_000)))
        self.expire()

    def expire(self) -> None:
        for one in [one for one in self.held.values() if one.lease_until <= self.now_ms]:
            del self.held[one.id]
            self.ready[one.queue] += 1
            self.ended([one.id], is_answer=False)

    def operate(self) -> None:
        if self.random.random() < 0.6:
            assert self.world.broker.open_throttle(KEY) is (self.closed is not None)
            self.closed = None
        else:
            self.world.broker.close_throttle(KEY, "3s")
            self.close(self.now_ms + 3_000)

    def restart(self) -> None:
        self.random.choice((self.world.restart, self.world.kill))()
        self.forget_probes()

    def lose_a_claim(self) -> None:
        """The write fails: nobody has got the messages, and it is not known any more which ones are probes."""

        def fail(step: CommitStep) -> None:
            raise errors.StoreFull("here", 0, 1)

        self.world.store.on_step = fail
        try:
            claimed = self.world.broker.claim(self.random.choice(QUEUES), limit=2)
            assert claimed == []
        except errors.Unavailable:
            self.forget_probes()
        finally:
            self.world.store.on_step = ignore

    def forget_probes(self) -> None:
        if self.closed is not None:
            self.closed = Closed(self.closed.until_ms)

    def check(self) -> None:
        told = {one.key: one for one in self.world.broker.throttles()}
        if self.closed is None:
            assert told == {}
            return
        at_once = self.closed.at_once if self.closed.until_ms <= self.now_ms else 0
        one = told[KEY]
        assert (one.until, one.at_once, one.probes) == (
            self.closed.until_ms,
            at_once,
            len(self.closed.probes),
        )


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_only_probes_of_a_closed_key_go_out_and_all_of_them_do(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    world = World("memory" if seed % 5 else "rocks", tmp_path)
    law = Law(world, random)
    for _ in range(STEPS):
        law.step()
    world.close()
