"""The lifecycle table is what the broker does: every fact of a random workload obeys it, and every row of it
is seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from fairlead.model.facts import (
    Completed,
    Enqueued,
    Fact,
    InDone,
    InLease,
    InReady,
    InStream,
    InWaiting,
    Leased,
    Moved,
    MoveKind,
    Quarantined,
    Spot,
)

from fairlead import Broker, Complete, DeadFilter, Extend, Fail, NewMessage, Release, Start
from fairlead.decide.lifecycle import TRANSITIONS, Where
from fairlead.errors import InvalidRequest
from tests.integration.world import World

PLACES = {
    InReady: Where.READY,
    InStream: Where.READY,
    InWaiting: Where.WAITING,
    InLease: Where.LEASED,
    InDone: Where.DONE,
}


class Watch:
    """Follows each message from place to place by the facts alone."""

    def __init__(self) -> None:
        self.where: dict[bytes, Where | None] = {}
        self.seen: set[tuple[str, Where | None, Where | None]] = set()

    def step(self, event: str, message_id: bytes, source: Where | None, target: Where | None) -> None:
        sources, targets = TRANSITIONS[event]
        assert source in sources, f"{event} left {source}"
        assert target in targets, f"{event} entered {target}"
        assert self.where.get(message_id) is source, (
            f"{event} says {source}, the message was {self.where.get(message_id)}"
        )
        self.where[message_id] = target
        self.seen.add((event, source, target))

    def commit(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case Enqueued(_, messages, _):
                    for message in messages:
                        self.step(
                            "enqueued", message.id, None, Where.WAITING if message.due_ms else Where.READY
                        )
                case Quarantined(_, messages, _):
                    for message in messages:
                        self.step("quarantined", message.id, None, Where.READY)
                case Leased(_, leases, followers):
                    for lease in [*leases, *followers]:
                        self.step("leased", lease.id, Where.READY, Where.LEASED)
                case Completed(leases, _):
                    for lease in leases:
                        self.step("completed", lease.id, Where.LEASED, None)
                case Moved(kind, message_id, source, target):
                    self.step(kind, message_id, place(source), None if target is None else place(target))


def place(spot: Spot) -> Where:
    return PLACES[type(spot)]


def random_step(world: World, chance: random.Random, held: list[Any]) -> None:
    broker = world.broker
    match chance.randrange(15):
        case 13:
            operate(broker, chance)
        case 14:
            stream = chance.choice("xy")
            broker.enqueue_many("q", [NewMessage(b"", stream=stream) for _ in range(chance.randint(1, 3))])
            run = [
                delivery
                for delivery in broker.claim("q", limit=5, max_per_stream=2)
                if delivery.stream == stream
            ]
            broker.settle([Fail(run[0], retry_in="1s"), *map(Release, run[1:])] if run else [])
            world.clock.advance(ms=chance.randint(500, 1100))
        case 0 | 1 | 2:
            options: dict[str, Any] = {
                "delay": chance.choice([None, None, "2s"]),
                "ttl": chance.choice([None, None, "1s", "3s", "40s"]),
            }
            broker.enqueue_many(
                "q",
                [
                    NewMessage(b"", fairness_key=chance.choice("abc"), **options)
                    for _ in range(chance.randint(1, 4))
                ],
            )
        case 3 | 4 | 5:
            held += broker.claim(
                chance.choice(["q", "q", "q.dlq"]), limit=chance.randint(1, 4), started=chance.random() < 0.5
            )
        case 6 | 7 | 8 if held:
            delivery = held.pop(chance.randrange(len(held)))
            makes = [
                Complete,
                Release,
                Fail,
                Start,
                lambda d: Fail(d, dead=True),
                lambda d: Fail(d, retry_in="2s"),
                lambda d: Extend(d, "5s"),
            ]
            broker.settle([chance.choice(makes)(delivery)])
        case 9:
            world.clock.advance(ms=chance.randint(1, 4000))
        case 10:
            broker.redrive("q", count=chance.randint(1, 3))
        case 11:
            keeps = chance.choice([None, "5s", "40s"])
            broker.update_queue(
                "q",
                expired_to_dead=chance.random() < 0.5,
                dead_retention=chance.choice([None, "20s"]),
                retain_completed=keeps,
            )
        case 12:
            what = chance.randrange(20)
            if what == 0:
                broker.purge("q")
            elif what == 1:
                broker.delete_queue("q")
                broker.create_queue("q", visibility_timeout="5s")
            else:
                broker.quarantine("q", [NewMessage(b"")])


def operate(broker: Broker, chance: random.Random) -> None:
    verb = chance.choice(
        [broker.retry, broker.drop, broker.done, broker.bury, broker.hold, broker.unhold, broker.fail]
    )
    where = chance.choice(["ready", "waiting", "leased", "done"])
    # A single message that cannot be retried, and a stream without live messages, are errors.
    with suppress(InvalidRequest):
        verb("q", [message.id for message in broker.peek("q", where=where, limit=3)])
    if chance.random() < 0.2:
        with suppress(InvalidRequest):
            broker.release_stream("q", chance.choice("xy"))
    if chance.random() < 0.1:
        broker.unhold("q", filter=DeadFilter())


def test_every_fact_of_a_random_workload_obeys_the_table_and_every_row_of_it_is_seen(tmp_path: Path) -> None:
    world = World("memory", tmp_path)
    world.broker.create_queue("q", visibility_timeout="5s")
    watch, held = Watch(), []
    world.store.on_step = lambda step: watch.commit(step.facts)
    chance = random.Random(7)
    for _ in range(6000):
        random_step(world, chance, held)
    world.close()
    for event, (sources, targets) in TRANSITIONS.items():
        for source in sources:
            assert any(seen[:2] == (event, source) for seen in watch.seen), f"{event} never left {source}"
        for target in targets:
            assert any((seen[0], seen[2]) == (event, target) for seen in watch.seen), (
                f"{event} never entered {target}"
            )


def test_every_kind_of_move_has_a_row_and_every_row_a_fact() -> None:
    assert set(TRANSITIONS) == {*get_args(MoveKind), "enqueued", "quarantined", "leased", "completed"}


def test_nothing_leaves_a_place_it_cannot_be_in_and_every_place_can_be_left() -> None:
    entered = {target for _, targets in TRANSITIONS.values() for target in targets}
    left = {source for sources, _ in TRANSITIONS.values() for source in sources}
    assert entered == left == {None, *Where}
