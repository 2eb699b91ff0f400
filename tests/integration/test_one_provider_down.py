"""One of three providers is down for 65 seconds: 10,000 messages, 50 workers.

Time is moved by hand in steps of 10 ms. Each worker takes one message at a time, calls its provider for 100 ms, and
settles. What is counted are the calls that providers see.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from fairlead import Complete, Fail, NewMessage
from fairlead.model.delivery import Delivery
from tests.integration.world import World

MESSAGES = 10_000
WORKERS = 50
STEP_MS = 10
CALL_MS = 100
DOWN, UP = "api.openai", ("stripe", "slack")
#: Tokens a second of the providers that are up, so that these are never done before the outage is over.
RATE = 40.0
DOWN_FROM_MS, DOWN_UNTIL_MS = 5_000, 70_000
RETRY_AFTER_MS = 20_000


class Call(NamedTuple):
    delivery: Delivery
    provider: str
    began_ms: int
    returns_ms: int


class Scene:
    def __init__(self, world: World) -> None:
        self.world = world
        self.now_ms = 0
        self.calls: dict[int, Call] = {}
        self.made: list[Call] = []
        #: When a failure with `close` was settled for the first time, and the calls that were under way then.
        self.first_closed_ms = 0
        self.in_flight: set[str] = set()
        #: Probes that were out at the most, by stage.
        self.stages: list[int] = []

    def step(self) -> None:
        self.world.clock.advance(ms=STEP_MS)
        self.now_ms += STEP_MS
        for worker, call in list(self.calls.items()):
            if call.returns_ms <= self.now_ms:
                del self.calls[worker]
                self.settle(call)
        for worker in range(WORKERS):
            if worker not in self.calls and not self.claim(worker):
                return

    def claim(self, worker: int) -> bool:
        claimed = self.world.broker.claim("work")
        for delivery in claimed:
            (provider,) = delivery.throttle_keys
            call = Call(delivery, provider, self.now_ms, self.now_ms + CALL_MS)
            self.calls[worker] = call
            self.made.append(call)
        for closed in self.world.broker.throttles() if claimed else ():
            if closed.at_once and (not self.stages or self.stages[-1] != closed.at_once):
                self.stages.append(closed.at_once)
        return bool(claimed)

    def settle(self, call: Call) -> None:
        is_down = call.provider == DOWN and DOWN_FROM_MS <= self.now_ms < DOWN_UNTIL_MS
        if not is_down:
            self.world.broker.settle([Complete(call.delivery)])
            return
        if not self.first_closed_ms:
            self.first_closed_ms = self.now_ms
            self.in_flight = {one.delivery.id for one in self.calls.values() if one.provider == DOWN}
        said = Fail(call.delivery, "429", retry_after=f"{RETRY_AFTER_MS}ms", close=DOWN)
        (result,) = self.world.broker.settle([said])
        assert result.outcome == "returned"


def test_a_provider_that_is_down_gets_only_probes_and_the_others_keep_their_rate(memory_world: World) -> None:
    world = memory_world
    world.broker.create_queue("work")
    for provider in UP:
        world.broker.config.set(f"throttle:{provider}:rate", RATE)
    providers = [DOWN, *UP]
    world.broker.enqueue_many(
        "work",
        [
            NewMessage(b"x", fairness_key=f"customer-{at % 7}", throttle_keys=[providers[at % 3]])
            for at in range(MESSAGES)
        ],
    )
    scene = Scene(world)
    while scene.now_ms < DOWN_UNTIL_MS + 2 * RETRY_AFTER_MS:
        scene.step()

    closed_ms = scene.first_closed_ms
    late = [call for call in scene.made if call.provider == DOWN and call.began_ms > closed_ms]
    # Before the first close was settled every worker may have had a call under way, and none began one after it.
    assert DOWN_FROM_MS <= closed_ms < DOWN_FROM_MS + CALL_MS
    during = [call for call in late if call.began_ms < DOWN_UNTIL_MS]
    # Each closing ends with one probe, which closes the key again while the provider is down.
    assert len(during) == 3, [call.began_ms for call in during]
    assert all(later.began_ms - earlier.began_ms >= RETRY_AFTER_MS for earlier, later in pairwise(during))
    # All of them are done, and none has used an attempt.
    stats = world.broker.stats("work")
    assert (stats.totals.completed, stats.totals.failed, stats.dead) == (MESSAGES, 0, 0)
    assert {call.delivery.attempts for call in scene.made} == {0}
    # The others went on at their rate.
    outage_ms = DOWN_UNTIL_MS - closed_ms
    seen = Counter(call.provider for call in scene.made if closed_ms < call.began_ms <= closed_ms + outage_ms)
    for provider in UP:
        assert seen[provider] >= 0.95 * RATE * outage_ms / 1000
    # It opened by doubling, and is open.
    opened = [stage for stage in scene.stages if stage > 1]
    assert opened == [2, 4, 8, 16, 32, 64]
    assert world.broker.throttles() == []
    reopened = [call for call in late if call.began_ms >= DOWN_UNTIL_MS]
    first_probe_ms = reopened[0].began_ms
    together = Counter((call.began_ms - first_probe_ms) // CALL_MS for call in reopened)
    assert [together[at] for at in range(4)] == [1, 2, 4, 8]
