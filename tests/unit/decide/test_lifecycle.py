"""The lifecycle table is what the engine does: every fact of a random workload obeys it, and every row of it is
seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, Release, Start
from fairlead.decide.lifecycle import TRANSITIONS, Where, check_step, place_of
from fairlead.engine.broker import Broker
from fairlead.errors import BrokenInvariant, InvalidRequest, Unavailable
from fairlead.records import facts as f
from fairlead.records.chunk import GONE
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock

#: Enough for every row of the table.
STEPS = 1_000
#: How a message stands in its stream. It follows from the other facts, so no fact says it.
WITHOUT_A_FACT = {"promoted", "demoted"}


class Watch:
    """Follows each message from place to place by the facts alone."""

    def __init__(self) -> None:
        self.where: dict[int, Where | None] = {}
        #: The queue that each message was enqueued into.
        self.homes: dict[int, int] = {}
        self.seen: set[tuple[str, Where | None, Where | None]] = set()
        #: What broke the table. An observer harms no commit: what it raises is only logged.
        self.wrong: list[Exception] = []

    def step(self, event: str, number: int, target: Where | None) -> None:
        sources, targets = TRANSITIONS[event]
        source = self.where.get(number)
        assert source in sources, f"{event} left {source}"
        assert target in targets, f"{event} entered {target}"
        self.where[number] = target
        self.seen.add((event, source, target))

    def commit(self, facts: Sequence[Any], memory: object = None) -> None:
        try:
            for fact in facts:
                self._follow(fact)
        except Exception as wrong:
            self.wrong.append(wrong)

    def _follow(self, fact: object) -> None:
        match fact:
            case f.ChunkEnqueued():
                self._enqueued(fact)
            case f.ScatteredEnqueued():
                for number in fact.numbers:
                    self.homes[number] = fact.queue_id
                    self.step("enqueued", number, Where.READY)
            case f.Claimed():
                for number in fact.numbers:
                    self.step("leased", number, Where.LEASED)
            case f.LeaseCompleted():
                for number in fact.numbers:
                    self.step("completed", number, None)
            case f.LeaseSplit():
                assert {self.where[number] for number in fact.numbers} == {Where.LEASED}
            case f.MessageMoved():
                self._check_claim(fact)
                self.step(str(fact.why), fact.number, place_of(fact.state, is_leased=False))
            case f.MessagesMoved():
                for one in fact.one_by_one():
                    self._follow(one)
            case f.MessageGone():
                self._check_claim(fact)
                self.step(fact.why, fact.number, None)
            case f.QueueDeleted():
                self.where.update(
                    (one, None) for one, home_id in self.homes.items() if home_id == fact.queue_id
                )

    def _enqueued(self, fact: f.ChunkEnqueued) -> None:
        chunk = fact.chunk
        for number in chunk.numbers:
            state = fact.own.get(number)
            if state is None and chunk.state_of(number) == GONE and fact.duplicates:
                continue
            self.homes[number] = chunk.queue_id
            event = "quarantined" if state is not None and state.dead_since_ms else "enqueued"
            self.step(event, number, Where.READY if state is None else place_of(state, is_leased=False))

    def _check_claim(self, fact: f.MessageMoved | f.MessageGone) -> None:
        """The fact names a claim exactly if a claim held the message."""
        assert (self.where.get(fact.number) is Where.LEASED) == (fact.claim_id != 0), fact


def random_step(broker: Broker, clock: ManualClock, chance: random.Random, held: list[Any]) -> None:
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
            clock.advance(ms=chance.randint(500, 1100))
        case 0 | 1 | 2:
            options: dict[str, Any] = {
                "delay": chance.choice([None, None, "2s"]),
                "ttl": chance.choice([None, None, "1s", "3s", "40s"]),
            }
            broker.enqueue_many(
                "q",
                [
                    NewMessage(b"", fairness_key=chance.choice("abc"), throttle_keys=["t"], **options)
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
                lambda d: Fail(d, retry_after="50ms", close="t"),
                lambda d: Extend(d, "5s"),
            ]
            broker.settle([chance.choice(makes)(delivery)])
        case 9:
            clock.advance(ms=chance.randint(1, 4000))
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


def test_every_fact_of_a_random_workload_obeys_the_table_and_every_row_of_it_is_seen() -> None:
    watch, held, clock, chance = Watch(), list[Any](), ManualClock(), random.Random(5)
    with Broker(DictionaryStore(), clock=clock, rng=random.Random(8)) as broker:
        broker.create_queue("q", visibility_timeout="5s")
        broker.observe(watch.commit)
        for _ in range(STEPS):
            random_step(broker, clock, chance, held)
    assert watch.wrong == []
    for event, (sources, targets) in TRANSITIONS.items():
        if event in WITHOUT_A_FACT:
            continue
        for source in sources:
            assert any(seen[:2] == (event, source) for seen in watch.seen), f"{event} never left {source}"
        for target in targets:
            assert any((seen[0], seen[2]) == (event, target) for seen in watch.seen), (
                f"{event} never entered {target}"
            )


def test_every_kind_of_move_has_a_row_and_every_row_a_fact() -> None:
    told = {*get_args(f.Move), *get_args(f.End), "enqueued", "quarantined", "leased"}
    assert set(TRANSITIONS) - WITHOUT_A_FACT == told


def test_nothing_leaves_a_place_it_cannot_be_in_and_every_place_can_be_left() -> None:
    entered = {target for _, targets in TRANSITIONS.values() for target in targets}
    left = {source for sources, _ in TRANSITIONS.values() for source in sources}
    assert entered == left == {None, *Where}


def test_a_step_that_the_table_lacks_is_refused_and_loses_its_transaction() -> None:
    for event, (sources, targets) in TRANSITIONS.items():
        for source in (None, *Where):
            for target in (None, *Where):
                if source in sources and target in targets:
                    check_step(event, source, target)
                else:
                    with pytest.raises(BrokenInvariant, match=event):
                        check_step(event, source, target)


@pytest.mark.parametrize("why", ["released", "retried", "delayed", "due"])
def test_the_engine_writes_no_move_that_the_table_lacks(why: f.Move) -> None:
    with Broker(DictionaryStore(), clock=ManualClock()) as broker:
        broker.create_queue("q")
        broker.enqueue("q", b"ready")
        commit = broker.engine.store.last_commit

        def move() -> None:
            with broker.engine.transaction() as tx:
                number = tx.memory.by_name["q"].schedule.numbers()[0]
                tx.add(f.MessageMoved(number, replace(tx.state_of(number), deliveries=1), why))

        with pytest.raises(Unavailable):
            move()
        assert broker.engine.store.last_commit == commit
        assert [one.payload for one in broker.claim("q")] == [b"ready"]


def test_a_ready_message_does_not_become_due_with_others_that_wait() -> None:
    with Broker(DictionaryStore(), clock=ManualClock()) as broker:
        broker.create_queue("q")
        broker.enqueue_many("q", [NewMessage(b"ready"), NewMessage(b"later", delay="1h")])
        commit = broker.engine.store.last_commit

        def move() -> None:
            with broker.engine.transaction() as tx:
                ready = tx.memory.by_name["q"].schedule.numbers()[0]
                states = [
                    replace(state, due_ms=0, place=tx.next_place())
                    for state in tx.states_of([ready + 1, ready])
                ]
                tx.add(f.MessagesMoved(states[0].queue_id, [ready + 1, ready], states, "due"))

        with pytest.raises(Unavailable):
            move()
        assert broker.engine.store.last_commit == commit
        assert [one.payload for one in broker.claim("q", limit=2)] == [b"ready"]


def test_the_engine_writes_no_end_that_the_table_lacks() -> None:
    with Broker(DictionaryStore(), clock=ManualClock()) as broker:
        broker.create_queue("q", retain_completed="1h")
        broker.enqueue("q", b"done")
        (held,) = broker.claim("q")
        broker.settle([Complete(held)])

        def end() -> None:
            with broker.engine.transaction() as tx:
                ((_, number),) = tx.done(tx.queue("q"), 1)
                tx.bring([number])
                tx.add(f.MessageGone(number, "completed", tx.queue("q").record.queue_id))

        with pytest.raises(Unavailable):
            end()
        assert broker.stats("q").done == 1
