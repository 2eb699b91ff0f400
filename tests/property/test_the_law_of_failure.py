"""The law of failure: streams, policies, operators and exchanges agree with a specification of order, step by
step and store by store.

Order within a stream is broken by nobody but an explicit release or an operator; no automatic retry resets a
count; every dead letter has its record; a repeated request has no second effect. A failing run prints the
shortest sequence that fails and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead import Broker, Complete, Fail, NewMessage, Release, Start
from fairlead.errors import InvalidRequest, MessageNotFound
from fairlead.model.delivery import Delivery
from fairlead.model.settle import DeliveryRef
from fairlead.testing import ManualClock, laws
from fairlead.testing.stored import stored_requests
from tests.property.order import HELD, LEASED, READY, Message, Order, Rules, Word
from tests.property.running import OnMemoryStore, OnRocksStore, check_law
from tests.turns import turn

LEASE_MS = 10_000
STREAMS = ("A", "B")
streams = st.sampled_from(["A", "A", "A", "B", None])
pick = st.integers(0, 1000)
rules = st.builds(
    Rules,
    wait_ms=st.sampled_from([0, 2000, None]),
    wait_in_stream_ms=st.sampled_from([60_000, 2000, 0, 60_000, None]),
    attempts=st.sampled_from([0, 2]),
    max_attempts=st.sampled_from([0, 0, 3]),
    ordering=st.sampled_from(["release", "release", "release", "strict"]),
)
words = st.builds(
    Word,
    verb=st.sampled_from(["complete", "fail", "fail", "release", "release", "start"]),
    id=st.just(""),
    token=st.just(""),
    keep_order=st.booleans(),
    retry_in_ms=st.sampled_from([None, None, 0, 3000]),
    dead=st.sampled_from([False, False, False, True]),
)
batches = st.lists(st.tuples(words, pick), min_size=1, max_size=4)


class TheLawOfFailure(RuleBasedStateMachine):
    store: Any

    @initialize(given=rules)
    def open(self, given: Rules) -> None:
        self.clock = ManualClock()
        self.spec = Order(given, LEASE_MS, self.clock.now_ms())
        self.handed: list[Delivery] = []
        #: The last number, and up to where answers have arrived.
        self.number = self.arrived = 0
        self._open()
        self.broker = self._broker()
        self.broker.open_session("ann")
        self.broker.create_queue("q", visibility_timeout=f"{LEASE_MS}ms", **given.options())

    def _open(self) -> None:
        raise NotImplementedError

    def _reopen(self) -> None:
        raise NotImplementedError

    def _broker(self) -> Broker:
        return self.store.open_broker(clock=self.clock, durability="os")

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()

    # In and out

    @rule(into=st.lists(streams, min_size=1, max_size=4), delay_ms=st.sampled_from([0, 0, 0, 3000]))
    def enqueue(self, into: list[str | None], delay_ms: int) -> None:
        ids = self.broker.enqueue_many("q", self._messages(into, delay_ms))
        for message_id, stream in zip(ids, into, strict=True):
            self.spec.enqueue(message_id, stream, delay_ms)

    @rule(most=st.sampled_from([10, 2, 1, 10]), started=st.booleans())
    def claim_everything(self, most: int, started: bool) -> None:
        """With no limit in the way, exactly what may go is handed out, each stream in order."""
        due = self.spec.everything(most)
        got = self.broker.claim("q", limit=100, max_per_stream=most, consumer="ann", started=started)
        assert sorted(d.id for d in got) == sorted(due)
        self._receive(got, "ann", started)

    @rule(limit=st.integers(1, 3), most=st.sampled_from([1, 3]), started=st.booleans())
    def claim_some(self, limit: int, most: int, started: bool) -> None:
        got = self.broker.claim("q", limit=limit, max_per_stream=most, consumer="bob", started=started)
        self._check_order(got)
        assert len(got) == limit or len(got) == len(self.spec.everything(most))
        self._receive(got, "bob", started)

    def _check_order(self, got: Sequence[Delivery]) -> None:
        taken: list[Message] = []
        for d in got:
            message = self.spec.messages[d.id]
            assert self.spec.may_go(message, taken), f"{d.payload!r} went out of order"
            taken.append(message)

    def _receive(self, got: Sequence[Delivery], consumer: str, started: bool) -> None:
        for d in got:
            assert (d.id, d.lease) not in {(old.id, old.lease) for old in self.handed}, (
                "a lease token was used twice"
            )
            assert d.attempts == self.spec.messages[d.id].attempts
            self.spec.lease(d.id, d.lease, consumer, started)
        by_stream = {name: [d.seq for d in got if d.stream == name] for name in STREAMS}
        assert all(seqs == sorted(seqs) for seqs in by_stream.values())
        self.handed += got

    @precondition(lambda self: self.handed)
    @rule(batch=batches, late=st.sampled_from([False, False, False, True]))
    def settle(self, batch: list[tuple[Word, int]], late: bool) -> None:
        said = self._said(batch, late)
        results = self.broker.settle([_item(word) for word in said])
        assert [result.outcome for result in results] == self.spec.settle(said)

    @rule(
        number=pick,
        retry_in_ms=st.sampled_from([None, 3000]),
        given_back=st.lists(st.sampled_from(["go on", "in order", "not"]), min_size=1, max_size=4),
        opened=st.sampled_from([False, False, True]),
    )
    def fail_the_first_of_a_run(
        self, number: int, retry_in_ms: int | None, given_back: list[str], opened: bool
    ) -> None:
        """And give back others of it: what the switch is for. Without a run in hand, one is made first."""
        if not self._runs():
            self.enqueue(["A"] * 3, 0)
            self.claim_everything(10, True)
        runs = self._runs()
        if not runs:
            return
        first, *others = runs[number % len(runs)]
        said = [Word("fail", first.id, first.token, retry_in_ms=retry_in_ms)]
        for message, how in zip(others, given_back, strict=False):
            if how != "not":
                said.append(Word("release", message.id, message.token, keep_order=how == "in order"))
        results = self.broker.settle([_item(word) for word in said])
        assert [result.outcome for result in results] == self.spec.settle(said)
        if opened:
            self.release_stream(first.stream or "")

    def _runs(self) -> list[list[Message]]:
        """What is held of each stream under each claim, two or more, in order."""
        runs: dict[tuple[str, str], list[Message]] = {}
        for message in sorted(self.spec.messages.values(), key=lambda m: m.seq):
            if message.where == LEASED and message.stream is not None and not message.dead:
                runs.setdefault((message.stream, message.token), []).append(message)
        return [run for run in runs.values() if len(run) > 1]

    @rule(consumer=st.sampled_from(["ann", "bob"]))
    def goodbye(self, consumer: str) -> None:
        self.broker.goodbye(consumer)
        self.spec.goodbye(consumer)

    @rule(
        batch=batches,
        into=st.lists(streams, max_size=2),
        most=st.sampled_from([1, 3]),
        heard=st.booleans(),
        again=st.booleans(),
        crash=st.booleans(),
    )
    def exchange(
        self,
        batch: list[tuple[Word, int]],
        into: list[str | None],
        most: int,
        heard: bool,
        again: bool,
        crash: bool,
    ) -> None:
        """Settle, enqueue and claim; then perhaps the same request again, perhaps to another life of the
        broker.

        With `heard`, the caller says that it got the answers to its requests before.
        """
        self.number += 1
        if heard:
            self.arrived = self.number - 1
        said = (
            sorted(
                self._said(batch, False),
                key=lambda word: ["start", "complete", "fail", "release"].index(word.verb),
            )
            if self.handed
            else []
        )
        call = {
            "settle": [_item(word) for word in said],
            "enqueue": {"q": self._messages(into)} if into else {},
            "claim": {"queue": "q", "limit": 100, "max_per_stream": most},
            "place": {"session": "ann", "number": self.number, "arrived": self.arrived},
        }
        answer = turn(self.broker, "ann", **call)
        assert stored_requests(self.store) == {*range(self.arrived + 1, self.number + 1)}
        assert [result.outcome for result in answer.settled] == self.spec.settle(said)
        for message_id, stream in zip(answer.enqueued.get("q", []), into, strict=True):
            self.spec.enqueue(message_id, stream)
        assert sorted(d.id for d in answer.deliveries) == sorted(self.spec.everything(most))
        self._receive(answer.deliveries, "ann", True)
        if again:
            if crash:
                self.restart()
            commit = self.store.last_commit
            repeated = turn(self.broker, "ann", **call)
            assert self.store.last_commit == commit
            assert (repeated.settled, repeated.enqueued) == (answer.settled, answer.enqueued)
            assert sorted((d.id, d.lease) for d in repeated.deliveries) == sorted(
                (d.id, d.lease) for d in answer.deliveries
            )

    # Operators

    @precondition(lambda self: self.spec.messages)
    @rule(
        verb=st.sampled_from(["retry", "hold", "hold", "unhold", "bury", "drop", "done", "fail"]),
        picks=st.lists(pick, min_size=1, max_size=2),
    )
    def operate(self, verb: str, picks: list[int]) -> None:
        known = list(self.spec.messages)
        ids = list(dict.fromkeys(known[number % len(known)] for number in picks))
        try:
            changed = getattr(self.broker, verb)("q", ids).changed
        except (InvalidRequest, MessageNotFound):
            # A single message that cannot be retried is an error.
            assert (verb, len(ids)) == ("retry", 1)
            changed = ()
        assert list(changed) == [
            message_id for message_id in ids if self.spec.operate(verb, self.spec.messages[message_id])
        ]

    @rule(stream=st.sampled_from(STREAMS))
    def release_stream(self, stream: str) -> None:
        if not self.spec.stream(stream):
            with pytest.raises(InvalidRequest):
                self.broker.release_stream("q", stream)
            return
        assert self.broker.release_stream("q", stream) == self.spec.release_stream(stream)

    @rule()
    def redrive(self) -> None:
        dead = [info.id for info in self.broker.peek("q.dlq", limit=100)]
        assert sorted(dead) == sorted(
            m.id for m in self.spec.messages.values() if m.dead and m.where == READY
        )
        assert self.broker.redrive("q").moved == len(dead)
        for message_id in dead:
            self.spec.redrive(self.spec.messages[message_id])

    @rule(given=rules)
    def change_the_rules(self, given: Rules) -> None:
        """In force from the next failure."""
        self.broker.update_queue("q", **given.options())
        self.spec.rules = given

    # Time

    @rule(ms=st.sampled_from([1000, 2000, 3000, LEASE_MS, 60_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.spec.advance(ms)

    @rule()
    def restart(self) -> None:
        self.broker.close()
        self._reopen()
        self.broker = self._broker()

    # What holds after every step

    @invariant()
    def the_law_holds(self) -> None:
        if not hasattr(self, "broker"):
            return
        problems = laws(self.store)
        assert not problems, problems
        for message in self.spec.messages.values():
            info = self.broker.find(message.id)
            shown = info.queue, info.where, info.due_at or 0, info.attempts, len(info.failures), info.rule
            where = "waiting" if message.where == HELD else message.where
            meant = (
                "q.dlq" if message.dead else "q",
                where,
                message.due_ms,
                message.attempts,
                message.failures,
                message.rule,
            )
            assert shown == meant, message.id
            if message.dead:
                assert info.reason is not None
                assert info.dead_since is not None
                assert info.failures[-1].rule == message.rule, "a dead letter without its record"
        for message_id in self.spec.gone:
            with pytest.raises(MessageNotFound):
                self.broker.find(message_id)
        stats = self.broker.stats("q")
        alive = [m for m in self.spec.messages.values() if not m.dead]
        counted = [sum(m.where in where for m in alive) for where in ((READY,), ("waiting", HELD), (LEASED,))]
        assert [stats.ready, stats.waiting, stats.leased] == counted

    # Helpers

    def _messages(self, into: Sequence[str | None], delay_ms: int = 0) -> list[NewMessage]:
        return [
            NewMessage(b"", stream=stream, delay=f"{delay_ms}ms" if delay_ms else None) for stream in into
        ]

    def _said(self, batch: list[tuple[Word, int]], late: bool) -> list[Word]:
        """Words about deliveries that are held, or of any age."""
        held = [
            d
            for d in self.handed
            if (m := self.spec.messages.get(d.id)) is not None and m.where == LEASED and m.token == d.lease
        ]
        chosen = self.handed if late or not held else held
        return [
            word._replace(id=chosen[number % len(chosen)].id, token=chosen[number % len(chosen)].lease)
            for word, number in batch
        ]


def _item(word: Word) -> Any:
    handle = DeliveryRef(word.id, word.token)
    if word.verb == "complete":
        return Complete(handle)
    if word.verb == "start":
        return Start(handle)
    if word.verb == "release":
        return Release(handle, keep_order=word.keep_order)
    retry_in = None if word.retry_in_ms is None or word.dead else f"{word.retry_in_ms}ms"
    return Fail(handle, error="no luck", retry_in=retry_in, dead=word.dead)


class InMemory(OnMemoryStore, TheLawOfFailure):
    pass


class OnDisk(OnRocksStore, TheLawOfFailure):
    pass


def test_the_law_of_failure_holds_in_memory() -> None:
    check_law(
        InMemory,
        "law_of_failure_holds_in_memory",
        examples=300,
        steps=30,
    )


def test_the_law_of_failure_holds_on_disk() -> None:
    check_law(
        OnDisk,
        "law_of_failure_holds_on_disk",
        examples=30,
        steps=25,
    )
