"""The law: whatever is done to a queue, the broker and the specification agree, and the store's own laws hold
after every step.

Random traffic drives a real broker, on both stores, beside the in-memory specification. A failing run prints
the shortest sequence of steps that fails, and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead import Broker, Complete, DeadFilter, Extend, Fail, NewMessage, Release, Settings, Start
from fairlead.errors import FairleadError, MessageNotFound
from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason
from fairlead.model.settle import DeliveryRef
from fairlead.testing import ManualClock, laws
from tests.property.running import OnMemoryStore, OnRocksStore, check_law
from tests.property.specification import (
    DONE,
    LEASED,
    READY,
    WAITING,
    Draft,
    Message,
    Options,
    Said,
    Specification,
    fifo_holds,
    must,
)

CONSUMERS = ("ann", "bob")
UNKNOWN_ID = "018bcfe5-6800-7000-8000-00000000001a"
REASONS = ("unknown", "handler_exception", "poison_message")


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * 3 * len(others) + list(others))


names = mostly("q", "r")
any_queue = mostly("q", "r", "q.dlq", "r.dlq")
pick = st.integers(0, 10_000)
drafts = st.builds(
    Draft,
    payload=st.binary(max_size=4),
    headers=mostly((), (("kind", "a"),), (("kind", "b"), ("x", ""))),
    key=st.sampled_from(["a", "b", "c"]),
    weight=mostly(1, 3, 0, 5000),
    throttle_keys=mostly((), ("t",), ("t", "u")),
    delay_ms=mostly(0, 400, 5000),
    dedup_key=mostly(None, "d1", "d2"),
    ttl_ms=mostly(0, 700, 6000),
)
options = st.builds(
    Options,
    visibility_ms=st.sampled_from([1000, 5000, 30_000]),
    retry=mostly("immediate", "none"),
    retry_attempts=mostly(None, 0, 2),
    max_attempts=mostly(0, 1, 3),
    max_deliveries=mostly(0, 2),
    max_messages=mostly(0, 4),
    max_unsettled_per_consumer=mostly(0, 2),
    max_unsettled_per_key=mostly(0, 1, 2),
    ttl_ms=mostly(0, 2500),
    expired_to_dead=st.booleans(),
    dead_retention_ms=mostly(0, 4000),
    dedup_window_ms=st.sampled_from([0, 900, 300_000]),
    dedup_kept=st.booleans(),
    retain_completed_ms=mostly(0, 900, 60_000),
)
said = st.builds(
    Said,
    verb=st.sampled_from(["complete", "fail", "fail", "release", "extend", "start"]),
    id=st.just(""),
    reason=st.sampled_from(REASONS),
    retry_in_ms=mostly(None, 0, 600, 6000),
    dead=mostly(False, True),
    progress=mostly(0, 1, 6),
    duration_ms=mostly(0, 200, 40_000),
)


class TheLaw(RuleBasedStateMachine):
    """A store of any kind: `_open` starts it, `_reopen` restarts it on the same data."""

    store: Any

    @initialize(
        given=options,
        read_ahead_rows=st.sampled_from([200_000, 0, 2]),
        body_cache_bytes=st.sampled_from([1 << 20, 0]),
        clock_goes_back=st.booleans(),
    )
    def open(
        self, given: Options, read_ahead_rows: int, body_cache_bytes: int, clock_goes_back: bool
    ) -> None:
        self.clock = ManualClock()
        #: All steps go one way, so that together they are never too small to be noticed.
        self.clock_goes_back = clock_goes_back
        self.settings = Settings(read_ahead_rows=read_ahead_rows, body_cache_bytes=body_cache_bytes)
        self.spec = Specification(self.clock.now_ms())
        self.handed: list[Delivery] = []
        self.seen_gone: set[str] = set()
        self._open()
        self.broker = self._broker()
        self.create("q", given)
        self.create("r", Options())

    def _open(self) -> None:
        raise NotImplementedError

    def _reopen(self) -> None:
        raise NotImplementedError

    def _broker(self) -> Broker:
        return self.store.open_broker(clock=self.clock, durability="os", settings=self.settings)

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()

    # Queues

    @rule(
        verb=st.sampled_from(
            [
                "resume",
                "resume",
                "create",
                "create",
                "update",
                "pause",
                "purge",
                "prune",
                "delete",
                "set_weight",
                "set_throttle",
            ]
        ),
        name=names,
        dead=mostly(False, True),
        given=options,
        key=st.sampled_from(["t", "u"]),
        number=mostly(None, 2, 100),
    )
    def administer(
        self, verb: str, name: str, dead: bool, given: Options, key: str, number: int | None
    ) -> None:
        """One rule for all that operators do, so that it does not drown the traffic."""
        if verb in ("create", "update"):
            getattr(self, verb)(name, given)
        elif verb == "delete":
            self.delete(name)
        elif verb == "purge":
            self.purge(name + ".dlq" if dead else name)
        elif verb == "prune":
            self.prune(name, number or 0)
        elif verb == "set_throttle":
            self.set_throttle(key, number)
        elif verb == "set_weight":
            self.broker.config.set(f"weight:{name}:a", number or 7)
        else:
            self.pause_or_resume(name + ".dlq" if dead else name, verb == "pause")

    def create(self, name: str, given: Options) -> None:
        given = given
        if not self.refused(
            "queue_exists" if name in self.spec.queues else None,
            lambda: self.broker.create_queue(name, **as_options(given)),
        ):
            self.spec.create(name, given)

    def update(self, name: str, given: Options) -> None:
        given = given
        if not self.refused(self.missing(name), lambda: self.broker.update_queue(name, **as_options(given))):
            self.spec.update(name, given)

    def delete(self, name: str) -> None:
        if not self.refused(self.missing(name), lambda: self.broker.delete_queue(name)):
            self.spec.delete(name)

    def purge(self, name: str) -> None:
        removed: list[int] = []
        if not self.refused(self.missing(name), lambda: removed.append(self.broker.purge(name))):
            assert removed == [self.spec.purge(name)]

    def prune(self, name: str, age_ms: int) -> None:
        removed: list[str] = []
        if not self.refused(
            self.missing(name),
            lambda: removed.extend(self.broker.prune(name, older_than=f"{age_ms}ms", which="done").changed),
        ):
            assert set(removed) == self.spec.pruned(name, age_ms)

    def pause_or_resume(self, name: str, paused: bool) -> None:
        if not self.refused(
            self.missing(name), lambda: (self.broker.pause if paused else self.broker.resume)(name)
        ):
            self.spec.queues[name].paused = paused

    def set_throttle(self, key: str, rate: int | None) -> None:
        if rate is not None:
            self.broker.config.set(f"throttle:{key}:rate", rate)
            self.spec.buckets.add(key)
        elif key in self.spec.buckets:
            self.broker.config.delete(f"throttle:{key}:rate")
            self.spec.buckets.remove(key)

    # Messages in

    @rule(keys=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=6))
    def enqueue_plain(self, keys: list[str]) -> None:
        self.enqueue("q", [Draft(b"plain", key=key) for key in keys])

    @rule(name=any_queue, batch=st.lists(drafts, min_size=1, max_size=5))
    def enqueue(self, name: str, batch: list[Draft]) -> None:
        code = self.missing(name)
        if code is None and name.endswith(".dlq"):
            code = "invalid_request"
        elif code is None and not self.spec.fits(name, batch):
            code = "queue_full"
        ids: list[str] = []
        if not self.refused(
            code, lambda: ids.extend(self.broker.enqueue_many(name, [as_message(draft) for draft in batch]))
        ):
            self.spec.enqueued(name, batch, ids)

    @rule(name=names, batch=st.lists(drafts, min_size=1, max_size=2), reason=st.sampled_from(REASONS))
    def quarantine(self, name: str, batch: list[Draft], reason: str) -> None:
        plain = [replace(draft, delay_ms=0, dedup_key=None, ttl_ms=0) for draft in batch]
        ids: list[str] = []

        def call() -> None:
            ids.extend(
                self.broker.quarantine(name, [as_message(d) for d in plain], reason=reason, error="bad")
            )

        if not self.refused(self.missing(name), call):
            self.spec.quarantined(name, plain, ids, reason)

    # Messages out

    @rule(limit=st.integers(1, 6), started=st.booleans())
    def claim_some(self, limit: int, started: bool) -> None:
        self.claim(["q"], limit, "ann", None, started)

    @rule(
        wanted=st.lists(any_queue, min_size=1, max_size=2, unique=True),
        limit=mostly(3, 1, 20),
        consumer=st.sampled_from(CONSUMERS),
        token=mostly(None, "t1", "t2"),
        started=st.booleans(),
    )
    def claim(self, wanted: list[str], limit: int, consumer: str, token: str | None, started: bool) -> None:
        repeated = bool(token and self.spec.held_under(token))
        code = None if repeated else next((code for code in map(self.missing, wanted) if code), None)
        got: list[Delivery] = []
        if not self.refused(
            code,
            lambda: got.extend(
                self.broker.claim(wanted, limit=limit, consumer=consumer, token=token, started=started)
            ),
        ):
            self.spec.claimed(wanted, limit, consumer, token, started, got)
            self.handed += got

    @precondition(lambda self: any(map(self.holds, self.handed)))
    @rule(batch=st.lists(st.tuples(said, pick), min_size=1, max_size=4), as_given=st.booleans())
    def settle(self, batch: list[tuple[Said, int]], as_given: bool) -> None:
        held = [d for d in self.handed if self.holds(d)]
        self.settle_these([(said, held[pick % len(held)]) for said, pick in batch], as_given)

    @precondition(lambda self: any(map(self.holds, self.handed)))
    @rule(duration_ms=st.sampled_from([200, 1500, 40_000]), then_ms=st.sampled_from([0, 300, 1200, 6000]))
    def extend_all(self, duration_ms: int, then_ms: int) -> None:
        """Leases made longer or shorter, and a look at what is left of them."""
        self.settle_these(
            [(Said("extend", "", duration_ms=duration_ms), d) for d in self.handed if self.holds(d)], True
        )
        self.advance(then_ms)

    @precondition(lambda self: any(map(self.holds, self.handed)))
    @rule(reason=st.sampled_from(REASONS), retry_in_ms=mostly(None, 600), dead=mostly(False, True))
    def fail_all(self, reason: str, retry_in_ms: int | None, dead: bool) -> None:
        """Failures of many at once, in the order they were handed out."""
        item = Said("fail", "", reason=reason, retry_in_ms=None if dead else retry_in_ms, dead=dead)
        self.settle_these([(item, d) for d in self.handed if self.holds(d)], True)

    @precondition(lambda self: self.handed)
    @rule(batch=st.lists(st.tuples(said, pick), min_size=1, max_size=4))
    def settle_late(self, batch: list[tuple[Said, int]]) -> None:
        """Deliveries of any age, and one message nobody knows."""
        every: list[Any] = [
            *self.handed,
            DeliveryRef(UNKNOWN_ID, self.handed[0].lease),
            DeliveryRef(self.handed[-1].id, "no token"),
        ]
        self.settle_these([(said, every[pick % len(every)]) for said, pick in batch], False)

    def settle_these(self, batch: list[tuple[Said, Any]], as_given: bool) -> None:
        items = [as_settlement(said, d if as_given else DeliveryRef(d.id, d.lease)) for said, d in batch]
        results = self.broker.settle(items)
        meant = self.spec.settle([replace(said, id=d.id, token=d.lease) for said, d in batch])
        assert [(r.id, r.outcome) for r in results] == [
            (d.id, outcome) for (_, d), outcome in zip(batch, meant, strict=True)
        ]

    def holds(self, d: Delivery) -> bool:
        message = self.spec.messages.get(d.id)
        return message is not None and message.lease is not None and message.lease.token == d.lease

    @precondition(lambda self: self.handed)
    @rule(pick=pick, name=any_queue, complete=st.booleans())
    def ack_or_nack(self, pick: int, name: str, complete: bool) -> None:
        message_id = self.handed[pick % len(self.handed)].id
        outcome: list[str] = []

        def call() -> None:
            outcome.append((self.broker.ack if complete else self.broker.nack)(name, message_id).outcome)

        if not self.refused(self.missing(name), call):
            assert outcome == [
                self.spec.settle_current(name, Said("complete" if complete else "fail", message_id))
            ]

    @rule(consumer=st.sampled_from(CONSUMERS))
    def goodbye(self, consumer: str) -> None:
        assert self.broker.goodbye(consumer) == self.spec.goodbye(consumer)

    # Dead letters

    @rule(
        name=any_queue,
        chosen=st.one_of(
            st.none(),
            st.sampled_from(REASONS).map(lambda reason: ("reason", reason)),
            st.sampled_from(["a", "b"]).map(lambda key: ("key", key)),
            st.just(("header", ("kind", "a"))),
            st.just(("min_attempts", 2)),
            st.just(("older_than", 1000)),
            st.lists(pick, max_size=3).map(lambda picks: ("ids", picks)),
        ),
        count=mostly(None, 1, 2),
        dry_run=mostly(False, True),
        clear_progress=st.booleans(),
    )
    def redrive(
        self,
        name: str,
        chosen: tuple[str, Any] | None,
        count: int | None,
        dry_run: bool,
        clear_progress: bool,
    ) -> None:
        dead = name if name.endswith(".dlq") else name + ".dlq"
        given, chooses = self.selection(chosen)
        answers: list[Any] = []

        def call() -> None:
            answers.append(
                self.broker.redrive(
                    name, **given, count=count, dry_run=dry_run, clear_progress=clear_progress
                )
            )

        before = self.peeked(dead)
        if self.refused(self.missing(name), call):
            return
        matching = len(self.spec.matching(dead, chooses))
        picked = matching if count is None else min(matching, count)
        assert (answers[0].matched, answers[0].moved) == (picked, 0 if dry_run else picked)
        if not dry_run:
            self.spec.redriven(
                dead, chooses, count, before - self.peeked(dead), clear_progress=clear_progress
            )

    def selection(self, chosen: tuple[str, Any] | None) -> tuple[dict[str, Any], Callable[[Message], bool]]:
        """The arguments of a redrive, and what they mean."""
        if chosen is None:
            return {}, lambda message: True
        kind, value = chosen
        if kind == "ids":
            known = list(self.spec.messages)
            ids = list(dict.fromkeys(known[pick % len(known)] for pick in value)) if known else []
            return {"ids": ids}, lambda message: message.id in ids
        now_ms = self.spec.now_ms
        means: dict[str, Callable[[Message], bool]] = {
            "reason": lambda message: message.reason == value,
            "key": lambda message: message.draft.key == value,
            "header": lambda message: value in message.draft.headers,
            "min_attempts": lambda message: message.attempts >= value,
            "older_than": lambda message: (
                message.dead_since is not None and message.dead_since <= now_ms - value
            ),
        }
        return {"filter": DeadFilter(**{kind: f"{value}ms" if kind == "older_than" else value})}, means[kind]

    def peeked(self, name: str) -> set[str]:
        return {info.id for info in self.broker.peek(name, limit=1000)} if name in self.spec.queues else set()

    # Time and restarts

    @rule(ms=st.sampled_from([1, 100, 500, 900, 1000, 4000, 5000, 30_000, 300_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.spec.advance(ms)

    @rule(ms=st.sampled_from([2000, 3_600_000]))
    def set_the_clock(self, ms: int) -> None:
        ms = -ms if self.clock_goes_back else ms
        self.clock.jump(ms=ms)
        self.spec.set_the_clock(ms)

    @rule(away_ms=mostly(0, 100, 5000), clock_ms=mostly(0, 3000))
    def restart(self, away_ms: int, clock_ms: int) -> None:
        """What becomes due while the broker is down happens when it opens."""
        clock_ms = -clock_ms if self.clock_goes_back else clock_ms
        self.broker.close()
        self.clock.advance(ms=away_ms)
        self.clock.jump(ms=clock_ms)
        self._reopen()
        self.broker = self._broker()
        self.spec.set_the_clock(clock_ms)
        self.spec.advance(away_ms)

    # What holds after every step

    @invariant()
    def the_law_holds(self) -> None:
        if not hasattr(self, "broker"):
            return
        self.broker.run_due()
        self.spec.run_due()
        problems = laws(self.store)
        assert not problems, problems
        assert {info.name for info in self.broker.queues()} == set(self.spec.queues)
        for name in self.spec.queues:
            self.the_counts_agree(name)
            for where in (READY, WAITING, LEASED, DONE):
                self.the_messages_agree(name, where)
        for message_id in self.spec.gone - self.seen_gone:
            with pytest.raises(MessageNotFound):
                self.broker.find(message_id)
        self.seen_gone = set(self.spec.gone)

    def the_counts_agree(self, name: str) -> None:
        inside = self.spec.inside(name)
        counted = {where: sum(m.where == where for m in inside) for where in (READY, WAITING, LEASED, DONE)}
        dead = len(self.spec.inside(name + ".dlq")) if not name.endswith(".dlq") else len(inside)
        stats = self.broker.stats(name)
        shown = (
            stats.ready,
            stats.waiting,
            stats.leased,
            stats.done,
            stats.dead,
            stats.bytes,
            stats.paused,
            stats.consumers,
        )
        consumers = len({m.lease.consumer for m in inside if m.lease is not None})
        size = sum(m.draft.size for m in inside if m.where != DONE)
        assert shown == (
            counted[READY],
            counted[WAITING],
            counted[LEASED],
            counted[DONE],
            dead,
            size,
            self.spec.queues[name].paused,
            consumers,
        )

    def the_messages_agree(self, name: str, where: str) -> None:
        infos = self.broker.peek(name, limit=1000, where=where)
        meant = {m.id: m for m in self.spec.inside(name, where)}
        assert sorted(info.id for info in infos) == sorted(meant), f"what is {where} in {name}"
        for info in infos:
            shown, specified = view_of_broker(info), view_of_specification(meant[info.id], self.spec.shown)
            assert shown == specified, info.id
        if where == READY:
            must(fifo_holds([meant[info.id] for info in infos]), f"{name} is not in the order of places")
        if infos:
            assert self.broker.find(infos[-1].id) == infos[-1]

    # Helpers

    def missing(self, name: str) -> str | None:
        return None if name in self.spec.queues else "queue_not_found"

    def refused(self, code: str | None, call: Callable[[], Any]) -> bool:
        """Make the call. It must be refused with that code, or not at all."""
        try:
            call()
        except FairleadError as error:
            if error.code != code:
                raise
            return True
        assert code is None, f"expected a refusal: {code}"
        return False


def view_of_broker(info: Any) -> dict[str, Any]:
    return {
        "payload": info.payload,
        "headers": info.headers,
        "key": info.fairness_key,
        "weight": info.weight,
        "throttles": info.throttle_keys,
        "attempts": info.attempts,
        "deliveries": info.deliveries,
        "progress": int(info.progress),
        "failures": len(info.failures) + info.failures_cut,
        "reason": info.reason and FailureReason(info.reason).word,
        "due": info.due_at,
        "expires": info.expires_at,
        "lease": info.lease_until,
        "consumer": info.consumer,
        "dead_since": info.dead_since,
        "done_at": info.done_at,
    }


def view_of_specification(message: Message, shown: Callable[[int | None], int | None]) -> dict[str, Any]:
    draft, lease = message.draft, message.lease
    return {
        "payload": draft.payload,
        "headers": dict(draft.headers),
        "key": draft.key,
        "weight": draft.corrected_weight,
        "throttles": draft.throttle_keys,
        "attempts": message.attempts,
        "deliveries": message.deliveries,
        "progress": message.progress,
        "failures": message.failures,
        "reason": message.reason,
        "due": shown(message.due_ms),
        "expires": shown(message.expires_ms),
        "lease": lease and shown(lease.expires_ms),
        "consumer": lease and lease.consumer,
        "dead_since": shown(message.dead_since),
        "done_at": shown(message.done_at),
    }


def as_options(given: Options) -> dict[str, Any]:
    return {
        "visibility_timeout": f"{given.visibility_ms}ms",
        "retry": {"policy": given.retry, "attempts": given.retry_attempts},
        "max_attempts": given.max_attempts,
        "max_deliveries": given.max_deliveries,
        "max_messages": given.max_messages,
        "max_unsettled_per_consumer": given.max_unsettled_per_consumer,
        "max_unsettled_per_key": given.max_unsettled_per_key,
        "ttl": f"{given.ttl_ms}ms",
        "expired_to_dead": given.expired_to_dead,
        "dead_retention": f"{given.dead_retention_ms}ms",
        "dedup": f"{given.dedup_window_ms}ms"
        if given.dedup_window_ms
        else "kept"
        if given.dedup_kept
        else "live",
        "retain_completed": f"{given.retain_completed_ms}ms",
    }


def as_message(draft: Draft) -> NewMessage:
    return NewMessage(
        draft.payload,
        headers=dict(draft.headers) or None,
        fairness_key=draft.key,
        weight=draft.weight,
        throttle_keys=draft.throttle_keys,
        delay=f"{draft.delay_ms}ms" if draft.delay_ms else None,
        dedup_key=draft.dedup_key,
        ttl=f"{draft.ttl_ms}ms" if draft.ttl_ms else None,
    )


def as_settlement(said: Said, d: Any) -> Any:
    if said.verb == "complete":
        return Complete(d)
    if said.verb == "fail":
        retry_in = None if said.retry_in_ms is None or said.dead else f"{said.retry_in_ms}ms"
        return Fail(
            d, error="no luck", reason=said.reason, progress=said.progress, retry_in=retry_in, dead=said.dead
        )
    if said.verb == "release":
        return Release(d)
    if said.verb == "extend":
        return Extend(d, f"{said.duration_ms}ms" if said.duration_ms else None, progress=said.progress)
    return Start(d)


class InMemory(OnMemoryStore, TheLaw):
    pass


class OnDisk(OnRocksStore, TheLaw):
    pass


def test_the_law_holds_in_memory() -> None:
    check_law(InMemory, "the_law_holds_in_memory", examples=400, steps=40)


def test_the_law_holds_on_disk() -> None:
    check_law(OnDisk, "the_law_holds_on_disk", examples=60, steps=30)
