"""The law of numbered claims: whatever is done around it, a claim in hand reads the same until it is closed,
and then each of its messages has the outcome recorded for it, or what its consumer said of those nobody
speaks of; what was begun and left has failed when it is taken up again; progress never shrinks. Nothing is
lost, nothing completed before the close, nothing handed out twice.

Random traffic on one queue: durable consumers, plain ones, operators, time, restarts, and commits that fail
halfway. What the broker answers is held against a small model of what each consumer was told. A failing run
prints how to replay it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead import Broker, Complete, DeadFilter, Extend, Fail, NewMessage, Release, Settings, Start
from fairlead.errors import (
    ClaimClosed,
    ClaimNotNext,
    ClaimReleased,
    ConsumerNotFound,
    InvalidRequest,
    MessageNotFound,
    StaleConsumer,
    StoreFull,
)
from fairlead.model.delivery import Delivery
from fairlead.model.views import MessageInfo
from fairlead.testing import CommitStep, ManualClock, laws
from fairlead.testing.sizes import read_size, set_sizes
from fairlead.testing.steps import ignore
from tests.property.consumer_model import Consumer, Holding, Told
from tests.property.running import OnMemoryStore, OnRocksStore, check_law

TTL_MS = 60_000
NAMES = ("etl", "audit")
PARTS = ("", "", "", "a", "b")
#: A reader's own sign of life may be this much older in the store than in memory.
SLACK_MS = TTL_MS // read_size("touches_per_ttl") + 1

SMALL_STEPS = {
    "claim_piece_messages": 3,
    "close_step_messages": 3,
    "close_step_outcomes": 2,
    "release_step_messages": 2,
    "read_page_messages": 2,
}

MEDDLING = ("ack", "nack", "drop", "done", "bury", "hold", "unhold", "fail", "retry")

WORDS = ("complete", "complete", "fail", "dead", "release", "start", "start", "extend", "extend")


class TheLawOfConsumers(RuleBasedStateMachine):
    store: Any

    @initialize(body_cache_bytes=st.sampled_from([1 << 20, 0]), max_unsettled=st.sampled_from([0, 0, 4]))
    def open(self, body_cache_bytes: int, max_unsettled: int) -> None:

        self.before = {name: read_size(name) for name in SMALL_STEPS}
        set_sizes(**SMALL_STEPS)
        self.clock = ManualClock()
        self.settings = Settings(body_cache_bytes=body_cache_bytes)
        #: Payload by id, of all that were ever enqueued; and those that may be gone, because somebody made it
        #: so.
        self.enqueued: dict[str, bytes] = {}
        self.may_be_gone: set[str] = set()
        self.mortal: set[str] = set()
        self.consumers: dict[str, Consumer] = {}
        self.plain: dict[str, Delivery] = {}
        self.told: dict[str, Told] = {}
        self._open()
        self.broker = self._broker()
        retry = {"policy": "fixed", "cooldown": "2s"}
        self.broker.create_queue("q", retry=retry, retry_in_stream=retry, max_unsettled_per_key=max_unsettled)
        self.register(NAMES[0], "release")

    def _open(self) -> None:
        raise NotImplementedError

    def _reopen(self) -> None:
        raise NotImplementedError

    def _broker(self) -> Broker:
        broker: Broker = self.store.open_broker(clock=self.clock, durability="os", settings=self.settings)
        return broker

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()
            set_sizes(**self.before)

    @rule(seed=st.integers(0, 1 << 32))
    def step(self, seed: int) -> None:
        """One rule, and a seed for all that is chosen in it: rules of their own are switched off by turns,
        and then hardly a claim gets as far as its close. A failing run is still shortened to the steps that
        matter.
        """
        rng = random.Random(seed)
        name, either = rng.choice(NAMES[:1] * 3 + NAMES[1:]), rng.random() < 0.5
        full = rng.choice([0, 0, 0, 1, 2, 3])
        actions: dict[str, tuple[int, Callable[[], None]]] = {
            "enqueue": (14, lambda: self.enqueue([draft(rng) for _ in range(rng.randint(1, 6))])),
            "claim": (
                16,
                lambda: self.claim(
                    name, rng.randint(1, 12), rng.choice([1000, 1000, 10]), full, rng.random() < 0.2
                ),
            ),
            "record": (
                18,
                lambda: self.record(
                    name, [said(rng) for _ in range(rng.randint(1, 6))], rng.choice(PARTS), spoilt=full == 3
                ),
            ),
            "take up": (
                7,
                lambda: self.begin_slice(
                    name, rng.randrange(1000), rng.choice([1, 1, 2, 2, 2, 3]), spoilt=full == 3
                ),
            ),
            "choose": (
                5,
                lambda: self.choose(name, {part for part in PARTS[3:] if rng.random() < 0.5}, either),
            ),
            "close": (10, lambda: self.close(name, full)),
            "read": (5, lambda: self.read(name, rng.randint(1, 3))),
            "register": (4, lambda: self.register(name, rng.choice(["complete", "release", "release"]))),
            "let go": (3, lambda: self.let_go(name, rng.random() < 0.3, full)),
            "stale": (2, lambda: self.stale(name)),
            "claim plain": (4, lambda: self.claim_plain(rng.randint(1, 5))),
            "settle plain": (
                4,
                lambda: self.settle_plain(
                    rng.randrange(1000), rng.choice(["complete", "fail", "release", "goodbye"])
                ),
            ),
            "meddle": (8, lambda: self.meddle(rng.randrange(1000), rng.choice(MEDDLING), either)),
            "wait": (7, lambda: self.wait(rng.choice([100, 2500, 2500, 2500, 31_000, TTL_MS + 5000]))),
            "restart": (3, self.restart),
            "empty": (1, lambda: self.empty(either)),
        }
        (chosen,) = rng.choices(list(actions), [weight for weight, _ in actions.values()])
        event(chosen)
        actions[chosen][1]()

    # Traffic

    def enqueue(self, batch: list[tuple[str | None, str, str | None]]) -> None:
        messages = [
            NewMessage(os.urandom(4), stream=stream, fairness_key=key, ttl=ttl) for stream, key, ttl in batch
        ]
        for message_id, message in zip(self.broker.enqueue_many("q", messages), messages, strict=True):
            self.enqueued[message_id] = message.payload
            if message.ttl:
                self.mortal.add(message_id)

    def claim_plain(self, limit: int) -> None:
        for delivery in self.broker.claim("q", limit=limit, consumer="ann", max_per_stream=limit):
            assert delivery.id not in self.pinned(), "handed out twice"
            self.plain[delivery.id] = delivery

    def settle_plain(self, which: int, how: str) -> None:
        if how == "goodbye":
            self.broker.goodbye("ann")
            self.broker.goodbye(NAMES[0])
        elif self.plain:
            delivery = list(self.plain.values())[which % len(self.plain)]
            (result,) = self.broker.settle(
                [{"complete": Complete, "fail": Fail, "release": Release}[how](delivery)]
            )
            if result.outcome == "completed":
                assert delivery.id not in self.pinned()
                self.may_be_gone.add(delivery.id)
        self.plain = {
            message_id: delivery
            for message_id, delivery in self.plain.items()
            if message_id not in self.pinned()
        }

    def meddle(self, which: int, verb: str, by_filter: bool) -> None:
        """Operators and whoever settles by id; half of the time at what a consumer has in hand."""
        if not self.enqueued:
            return
        wanted = sorted(self.pinned() if which % 2 and self.pinned() else self.enqueued)
        message_id = wanted[which % len(wanted)]
        if verb in ("ack", "nack"):
            if getattr(self.broker, verb)("q", message_id).ok:
                assert message_id not in self.pinned()
                self.may_be_gone.add(message_id)
            return
        try:
            result = (
                getattr(self.broker, verb)("q", None, filter=DeadFilter())
                if by_filter
                else getattr(self.broker, verb)("q", [message_id])
            )
        except (InvalidRequest, MessageNotFound):
            # A single message that cannot be retried is an error.
            assert (verb, by_filter) == ("retry", False)
            return
        assert not self.pinned() & set(result.changed), "moved though it is pinned"
        if verb in ("drop", "done"):
            self.may_be_gone |= set(result.changed)

    def empty(self, ids: bool) -> None:
        resting = {
            info.id
            for where in ("ready", "waiting")
            for info in self.broker.peek("q", where=where, limit=1000)
        }
        if ids:
            self.broker.purge("q")
        else:
            self.broker.drain("q")
        self.may_be_gone |= resting

    def wait(self, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.look_who_is_lost()

    def restart(self) -> None:
        self.broker.close()
        self._reopen()
        self.broker = self._broker()
        self.broker.run_due()
        self.look_who_is_lost()

    # Durable consumers

    def register(self, name: str, default_outcome: Any) -> None:
        known = self.consumers.get(name)
        if (
            known is not None
            and (known.holding or known.begun)
            and known.default_outcome != default_outcome
            and self.broker.consumers.show(name, "q").open
        ):
            with pytest.raises(InvalidRequest):
                self.broker.consumers.register(name, "q", ttl=f"{TTL_MS}ms", default_outcome=default_outcome)
            return
        info = self.broker.consumers.register(name, "q", ttl=f"{TTL_MS}ms", default_outcome=default_outcome)
        assert info.default_outcome == default_outcome
        if known is None:
            known = self.consumers[name] = Consumer(info.generation, self.clock.now_ms(), default_outcome)
        else:
            known.stale.append(known.generation)
            known.generation, known.default_outcome = info.generation, default_outcome
        known.seen_ms = self.clock.now_ms()
        assert (info.last_closed, info.lost) == (known.last_closed, known.lost)

    def claim(self, name: str, limit: int, max_bytes: int, full: int, ceiling: bool) -> None:
        consumer = self.consumers.get(name)
        if consumer is None:
            with pytest.raises(ConsumerNotFound):
                self.broker.consumers.claim(name, "q", 1, 1)
            return
        number, others = consumer.last_closed + 1, self.pinned()
        up_to = self.broker.consumers.ceiling(name, "q", consumer.generation) if ceiling else None

        def call() -> Any:
            return self.broker.consumers.claim(
                name, "q", consumer.generation, number, limit=limit, max_bytes=max_bytes, up_to=up_to
            )

        answer = self.attempt(call, full)
        consumer.seen_ms = self.clock.now_ms()
        if answer is None:
            consumer.begun = True
            return
        if consumer.holding is not None:
            assert (answer.number, answer.count) == (consumer.holding.number, len(consumer.holding.rows))
        elif answer.count:
            deliveries = list(self.broker.consumers.read(name, "q", consumer.generation, number))
            assert len(deliveries) == answer.count
            assert not others & {delivery.id for delivery in deliveries}, "handed out twice"
            for stream in ("s", "t"):
                seqs = [delivery.seq for delivery in deliveries if delivery.stream == stream]
                assert seqs == sorted(seqs)
            consumer.holding = Holding(
                number, [(delivery.id, delivery.payload) for delivery in deliveries], deliveries
            )
            consumer.begun = False
        else:
            assert not consumer.begun, "a claim that was begun is never empty"

    def read(self, name: str, slices: int) -> None:
        consumer = self.consumers.get(name)
        holding = consumer.holding if consumer else None
        if consumer is None or holding is None:
            return
        whole = self.broker.consumers.read(name, "q", consumer.generation, holding.number)
        assert [(delivery.id, delivery.payload) for delivery in whole] == holding.rows
        readings = [
            self.broker.consumers.read(
                name, "q", consumer.generation, holding.number, slice=at, slices=slices
            )
            for at in range(slices)
        ]
        parts = [[(delivery.id, delivery.payload) for delivery in reading] for reading in readings]
        assert sorted(row for part in parts for row in part) == sorted(holding.rows)
        assert all(part == [row for row in holding.rows if row in part] for part in parts)
        if consumer.default_outcome == "release":
            self.read_what_is_left(name, consumer, holding, slices)
        consumer.seen_ms = self.clock.now_ms()

    def read_what_is_left(self, name: str, consumer: Consumer, holding: Holding, slices: int) -> None:
        left, read = holding.left(), self.broker.consumers.read
        given = [
            read(name, "q", consumer.generation, holding.number, slice=at, slices=slices, unsettled=True)
            for at in range(slices)
        ]
        readings = [[delivery.id for delivery in reading] for reading in given]
        assert sorted(message_id for reading in readings for message_id in reading) == sorted(left)
        assert all(
            reading == [message_id for message_id in left if message_id in reading] for reading in readings
        )

    def begin_slice(self, name: str, which: int, slices: int, *, spoilt: bool) -> None:
        consumer = self.consumers.get(name)
        holding = consumer.holding if consumer else None
        if consumer is None or holding is None:
            return
        slice = which % slices
        inside = {
            delivery.id
            for delivery in self.broker.consumers.read(
                name, "q", consumer.generation, holding.number, slice=slice, slices=slices
            )
        }
        begun = holding.begun() & inside
        if spoilt:
            self.spoil(
                lambda: self.broker.consumers.begin_slice(
                    name, "q", consumer.generation, holding.number, slice=slice, slices=slices
                )
            )
            return
        slice_begun = self.broker.consumers.begin_slice(
            name, "q", consumer.generation, holding.number, slice=slice, slices=slices
        )
        assert (slice_begun.again, slice_begun.failed) == (holding.had_begun(slice, slices), len(begun))
        holding.slices_begun.append((slice, slices))
        holding.said += [("", message_id, "fail") for message_id in begun]
        consumer.seen_ms = self.clock.now_ms()

    def record(self, name: str, said: list[tuple[int, str, int]], part: str, *, spoilt: bool) -> None:
        consumer = self.consumers.get(name)
        holding = consumer.holding if consumer else None
        if consumer is None or holding is None:
            return
        about = [
            (holding.deliveries[which % len(holding.deliveries)], word, progress)
            for which, word, progress in said
        ]
        items: list[Any] = [settlement(*item) for item in about]
        if part and any(isinstance(item, (Start, Extend)) for item in items):
            with pytest.raises(InvalidRequest):
                self.broker.consumers.record(name, "q", consumer.generation, holding.number, items, part=part)
            return
        if spoilt:
            self.spoil(
                lambda: self.broker.consumers.record(
                    name, "q", consumer.generation, holding.number, items, part=part
                )
            )
            return
        self.broker.consumers.record(name, "q", consumer.generation, holding.number, items, part=part)
        for (delivery, word, progress), item in zip(about, items, strict=True):
            if word == "extend":
                self.told.setdefault(delivery.id, Told()).extend(holding, delivery.id, progress, item.carry)
            else:
                holding.said.append((part, delivery.id, word))
        consumer.seen_ms = self.clock.now_ms()

    def choose(self, name: str, parts: set[str], add: bool) -> None:
        consumer = self.consumers.get(name)
        holding = consumer.holding if consumer else None
        if consumer is None or holding is None:
            return
        self.broker.consumers.choose(name, "q", consumer.generation, holding.number, sorted(parts), add=add)
        holding.chosen = holding.chosen | parts if add else parts
        consumer.seen_ms = self.clock.now_ms()

    def close(self, name: str, full: int) -> None:
        consumer = self.consumers.get(name)
        holding = consumer.holding if consumer else None
        if consumer is None or holding is None:
            return
        before = {message_id: self.find(message_id) for message_id, _ in holding.rows}
        closed = self.attempt(
            lambda: self.broker.consumers.close(name, "q", consumer.generation, holding.number), full
        )
        if closed is None:
            if self.broker.consumers.show(name, "q").last_closed < holding.number:
                return
            self.broker.run_due()
        consumer.holding = None
        consumer.last_closed = holding.number
        consumer.seen_ms = self.clock.now_ms()
        outcomes = holding.outcomes()
        for message_id, _ in holding.rows:
            self.check_outcome(
                message_id, outcomes.get(message_id, consumer.default_outcome), before[message_id]
            )
        again = self.broker.consumers.close(name, "q", consumer.generation, holding.number)
        assert sum(again.settled.values()) == len(holding.rows)
        assert closed in (None, again)
        with pytest.raises(ClaimClosed):
            self.broker.consumers.read(name, "q", consumer.generation, holding.number)

    def let_go(self, name: str, dropping: bool, full: int) -> None:
        consumer = self.consumers.get(name)
        if consumer is None:
            return
        call = self.broker.consumers.drop if dropping else self.broker.consumers.release
        if self.attempt(lambda: call(name, "q") or True, full) is None:
            self.broker.run_due()
        if name not in {info.name for info in self.broker.consumers.list()}:
            assert dropping
            self.back_in_the_queue(consumer)
            del self.consumers[name]
        else:
            self.look_who_is_lost(by_hand=name)

    def stale(self, name: str) -> None:
        """Generations and numbers that are over change nothing."""
        consumer = self.consumers.get(name)
        if consumer is None:
            return
        for generation in consumer.stale:
            for call in (
                self.broker.consumers.close,
                self.broker.consumers.claim,
                self.broker.consumers.read,
            ):
                with pytest.raises(StaleConsumer):
                    call(name, "q", generation, consumer.last_closed + 1)
        with pytest.raises(ClaimNotNext):
            self.broker.consumers.claim(name, "q", consumer.generation, consumer.last_closed + 2)
        if consumer.lost:
            with pytest.raises(ClaimReleased):
                self.broker.consumers.close(name, "q", consumer.generation, consumer.lost)

    # What must hold

    @invariant()
    def laws(self) -> None:
        if hasattr(self, "broker"):
            assert laws(self.store) == []

    @invariant()
    def what_is_in_hand_stays_in_hand(self) -> None:
        for name, consumer in self.consumers.items() if hasattr(self, "consumers") else ():
            if consumer.holding is not None:
                info = self.broker.consumers.show(name, "q")
                assert (info.open, info.messages) == (consumer.holding.number, len(consumer.holding.rows))
                assert {self.find(message_id).consumer for message_id, _ in consumer.holding.rows} == {name}  # type: ignore[union-attr]

    @invariant()
    def nothing_is_lost(self) -> None:
        for message_id, payload in self.enqueued.items() if hasattr(self, "enqueued") else ():
            info = self.find(message_id)
            if info is None:
                assert message_id in self.may_be_gone | self.mortal, f"{message_id} is gone"
                assert message_id not in self.pinned()
            else:
                assert info.payload == payload
                told = self.told.get(message_id, Told())
                assert (int(info.progress) & told.progress, info.carry) == (told.progress, told.carry)

    # Details

    def pinned(self) -> set[str]:
        return {
            message_id
            for consumer in self.consumers.values()
            if consumer.holding
            for message_id, _ in consumer.holding.rows
        }

    def find(self, message_id: str) -> MessageInfo | None:
        try:
            return self.broker.find(message_id)
        except MessageNotFound:
            return None

    def attempt(self, call: Callable[[], Any], commits: int) -> Any:
        """The call's answer; None when the store was full after so many commits, and the broker was killed
        there and then.
        """
        left = [commits]

        def full(step: CommitStep) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StoreFull("here", 0, 1)

        if commits:
            self.store.on_step = full
        try:
            return call()
        except StoreFull:
            self.broker.close()
            self._reopen()
            self.broker = self._broker()
            return None
        finally:
            self.store.on_step = ignore

    def spoil(self, call: Callable[[], Any]) -> None:
        """A call whose one commit fails, in a broker that goes on: nothing of it has happened."""

        def full(step: CommitStep) -> None:
            raise StoreFull("here", 0, 1)

        self.store.on_step = full
        with pytest.raises(StoreFull):
            call()
        self.store.on_step = ignore

    def check_outcome(self, message_id: str, outcome: str, before: MessageInfo | None) -> None:
        after = self.find(message_id)
        assert before is not None
        over = before.expires_at is not None and before.expires_at <= self.clock.now_ms()
        if outcome == "complete":
            assert after is None
            self.may_be_gone.add(message_id)
        elif outcome == "dead":
            assert after is not None
            assert after.queue == "q.dlq"
        elif over:
            assert after is None
            self.may_be_gone.add(message_id)
        else:
            assert after is not None
            assert after.queue == "q"
            assert after.where in (("ready",) if outcome == "release" else ("waiting", "ready"))
            assert after.attempts == before.attempts + (outcome == "fail")

    def look_who_is_lost(self, by_hand: str = "") -> None:
        for name, consumer in self.consumers.items():
            info = self.broker.consumers.show(name, "q")
            away_ms = self.clock.now_ms() - consumer.seen_ms
            if consumer.holding is None and not consumer.begun:
                assert (info.open, info.lost, info.last_closed) == (0, consumer.lost, consumer.last_closed)
            elif info.open:
                assert away_ms < TTL_MS
                assert name != by_hand
            else:
                if info.lost != consumer.lost:
                    assert name == by_hand or away_ms >= TTL_MS - SLACK_MS
                    assert info.lost == info.last_closed == consumer.last_closed + 1
                    self.back_in_the_queue(consumer)
                consumer.last_closed, consumer.lost, consumer.holding, consumer.begun = (
                    info.last_closed,
                    info.lost,
                    None,
                    False,
                )

    def back_in_the_queue(self, consumer: Consumer) -> None:
        for message_id, _ in consumer.holding.rows if consumer.holding else ():
            info = self.find(message_id)
            assert info is not None or message_id in self.mortal
            assert info is None or (info.queue, info.where) == ("q", "ready")


def draft(rng: random.Random) -> tuple[str | None, str, str | None]:
    """Stream, key, time to live."""
    return (
        rng.choice([None, None, "s", "t"]),
        rng.choice(["a", "b"]),
        rng.choice([None, None, None, None, "3s"]),
    )


def said(rng: random.Random) -> tuple[int, str, int]:
    """About which, what, and the progress that goes with it."""
    return rng.randrange(1000), rng.choice(WORDS), rng.choice([0, 1, 1, 2, 3, 3, 7]) << 20


def settlement(delivery: Delivery, word: str, progress: int) -> Complete | Fail | Release | Extend | Start:
    if word == "complete":
        return Complete(delivery)
    if word == "start":
        return Start(delivery)
    if word == "extend":
        return Extend(delivery, progress=progress, carry=os.urandom(3) if progress != 2 << 20 else None)
    return (
        Release(delivery, keep_order=True) if word == "release" else Fail(delivery, "no", dead=word == "dead")
    )


class InMemory(OnMemoryStore, TheLawOfConsumers):
    pass


class OnDisk(OnRocksStore, TheLawOfConsumers):
    pass


def test_the_law_of_consumers_holds_in_memory() -> None:
    check_law(InMemory, "test_the_law_of_consumers_holds_in_memory", examples=60, steps=60)


def test_the_law_of_consumers_holds_on_disk() -> None:
    check_law(OnDisk, "test_the_law_of_consumers_holds_on_disk", examples=10, steps=50)
