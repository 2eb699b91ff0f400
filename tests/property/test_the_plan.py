"""The scheduler that plans delivers in the order of the oracle, and a plan changes nothing.

Random messages of several keys, weights and throttle keys, in memory and on disk, claims, completions,
releases, failures, removals, changed buckets and waits go through both.
"""

from __future__ import annotations

import os
import random
from typing import NamedTuple

import pytest

from fairlead.records.chunk import LaneName
from tests.property.planned_queue import OracleQueue, PlannedQueue, Settings
from tests.sampling import sampled

STEPS = 60
KEYS = ("a", "b", "c", "d")
PLAIN: tuple[tuple[str, ...], ...] = ((),)
THROTTLED: tuple[tuple[str, ...], ...] = ((), (), ("t",), ("u",), ("t", "u"))


class Case(NamedTuple):
    """What a random life contains."""

    throttles: tuple[tuple[str, ...], ...] = PLAIN
    weights: int = 1
    max_unsettled: int = 0
    #: Whether heads have followers, and whether claims end at a place.
    runs: bool = False
    up_to: bool = False


class Run:
    """One random life of a queue beside the oracle."""

    def __init__(self, seed: int, case: Case) -> None:
        self.seed = seed
        self.case = case
        self.chance = random.Random(seed)
        pick = self.chance.choice
        self.settings = Settings(
            quantum=pick([1, 1, 1, 3]),
            max_unsettled_per_key=case.max_unsettled,
            cold=pick([0.0, 0.0, 0.1, 0.5]),
            window=pick([1, 2, 5]),
        )
        self.queue = PlannedQueue(self.settings, self.chance)
        self.oracle = OracleQueue(quantum=self.settings.quantum, max_unsettled_per_key=case.max_unsettled)
        self.now_ms = 0
        self.numbers = 0
        self.taken: list[int] = []
        self.followers_taken: list[str] = []
        for throttle_key in ("t", "u"):
            self.change_bucket(throttle_key)

    def change_bucket(self, throttle_key: str) -> None:
        rate, burst = self.chance.choice([0.5, 5.0, 7.0]), self.chance.choice([1.0, 3.0])
        self.queue.set_bucket(throttle_key, rate, burst, self.now_ms)
        self.oracle.set_bucket(throttle_key, rate, burst, self.now_ms)

    def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.35:
            self.enqueue()
        elif kind < 0.6:
            self.claim()
        elif kind < 0.85:
            self.settle()
        elif kind < 0.9:
            self.remove()
        elif kind < 0.98:
            self.now_ms += self.chance.choice([1, 199, 200, 2000, 30_000])
        elif kind < 0.99:
            self.change_bucket(self.chance.choice("tu"))
        else:
            self.reweigh()
        self.queue.check_laws()

    def enqueue(self) -> None:
        for _ in range(self.chance.choice([1, 1, 5, 20])):
            self.numbers += 1
            lane: LaneName = (self.chance.choice(KEYS), *self.chance.choice(self.case.throttles))
            weight = self.chance.randint(1, self.case.weights)
            self.queue.add(self.numbers, lane, weight)
            self.oracle.add_one(self.numbers, lane, weight)

    def claim(self) -> None:
        limit = self.chance.choice([1, 2, 3, 10, 40])
        if self.chance.random() < 0.3:
            # A plan that is dropped leaves nothing behind.
            self.queue.plan(self.chance.choice([1, 7, 50]), self.now_ms)
        up_to = self.chance.randint(1, self.numbers + 1) if self.case.up_to else None
        followers = self.followers if self.case.runs and self.chance.random() < 0.7 else None
        expected = self.oracle.take_numbers(limit, self.now_ms, followers, up_to)
        assert self.queue.take(limit, self.now_ms, followers, up_to) == expected
        heads = [number for number in expected if number in self.queue.messages]
        run_keys = {number: lane[0] for head in heads for lane, number in self.followers(head, limit)}
        self.followers_taken += [run_keys[number] for number in expected if number in run_keys]
        self.taken += heads

    def followers(self, head: int, room: int) -> list[tuple[LaneName, int]]:
        """The same for the same head."""
        chance = random.Random(self.seed * 1_000_003 + head)
        key = self.queue.messages[head][0][0]
        count = chance.choice([0, 0, 1, 3, 8])
        return [((key, *chance.choice(self.case.throttles)), 1_000_000 + 10 * head + n) for n in range(count)]

    def reweigh(self) -> None:
        key, weight = self.chance.choice(KEYS), self.chance.randint(1, 5)
        self.queue.scheduler.reweigh(key, weight)
        self.oracle.reweigh(key, weight)

    def settle(self) -> None:
        for _ in range(min(len(self.taken), self.chance.choice([1, 3, 10]))):
            number = self.taken.pop(self.chance.randrange(len(self.taken)))
            verb = self.chance.choice(["complete", "complete", "release", "fail"])
            if verb == "fail":
                self.oracle.fail(number, *self.queue.messages[number])
                self.queue.fail(number)
            elif verb == "release":
                self.oracle.release(number.to_bytes(16, "big"))
                self.queue.release(number)
            else:
                self.oracle.complete(number.to_bytes(16, "big"))
                self.queue.complete(number)

        if self.case.max_unsettled and self.followers_taken:
            key = self.followers_taken.pop()
            self.queue.scheduler.settled(key)
            self.oracle.follower_settled(key)

    def remove(self) -> None:
        ready = sorted(set(self.queue.messages) - set(self.taken))
        if ready:
            number = self.chance.choice(ready)
            self.oracle.remove(number, *self.queue.messages[number], self.queue.places[number])
            self.queue.remove(number)


def check_plan(case: Case) -> None:
    first = int(os.environ.get("FAIRLEAD_PROPERTY_SEED") or random.SystemRandom().randrange(2**32))
    runs = int(os.environ.get("FAIRLEAD_PROPERTY_EXAMPLES") or sampled(10, of=40))
    for seed in range(first, first + runs):
        run = Run(seed, case)
        try:
            for _ in range(STEPS):
                run.step()
        except BaseException as error:
            error.add_note(f"replay: FAIRLEAD_PROPERTY_SEED={seed} make test ARGS='-k test_the_plan'")
            raise


CASES = {
    "plain": Case(),
    "weights": Case(weights=5),
    "throttles": Case(THROTTLED),
    "throttles and weights": Case(THROTTLED, weights=5),
    "unsettled messages limited": Case(THROTTLED, weights=3, max_unsettled=3),
    "runs": Case(weights=3, runs=True),
    "throttled runs, unsettled messages limited": Case(THROTTLED, max_unsettled=4, runs=True),
    "up to a place": Case(THROTTLED, weights=3, up_to=True),
    "runs up to a place": Case(THROTTLED, weights=3, runs=True, up_to=True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_plan_delivers_in_the_order_of_the_oracle_and_changes_nothing(case: Case) -> None:
    check_plan(case)
