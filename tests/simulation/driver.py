"""One simulated life of a broker: a seed decides what is asked of it, what its hooks answer and when it is cut off."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fairlead import Broker, Complete, DeadFilter, Extend, Fail, NewMessage, Release, Settings, Start
from fairlead.broker import intents, operators, streams, timers
from fairlead.errors import InvalidRequest, QueueExists, QueueFull, QueueNotFound, RequestExpired, StoreFull
from fairlead.model.delivery import Delivery
from fairlead.model.ids import IdSource, find_id, id_time_ms, show_id
from fairlead.model.lane import row_place, row_stream
from fairlead.model.settle import DeliveryRef, Settlement
from fairlead.store.laws import check_laws
from fairlead.store.memory import MemoryStore
from fairlead.store.rocks.store import RocksStore
from fairlead.testing import ManualClock
from tests.simulation.cut_store import Cut, CutStore, Trouble
from tests.simulation.random_hooks import RandomHooks
from tests.simulation.traffic import KEYS, STREAMS, random_filter, random_message, random_options
from tests.simulation.witness import LEASED, READY, WAITING, BrokenPromise, Doing, Witness

QUEUES = ("q", "r")
CONSUMERS = ("ann", "bob")
REQUEST_KEPT_MS = 600_000
#: When in an exchange each kind of item takes effect.
TURNS: dict[type, int] = {Extend: 0, Start: 0, Complete: 1, Fail: 2, Release: 3}


class Life:
    """`say` is told every step, for a replay that is read by people."""

    def __init__(self, seed: int, directory: Path, *, on_disk: bool = False, say: Callable[[str], None] = lambda line: None) -> None:
        self.rng = rng = random.Random(seed)
        self.say = say
        self.directory = directory
        self.clock = ManualClock()
        self.hooks = RandomHooks(random.Random(seed + 1))
        self.sizes = {"let_by": rng.choice([1, 3, 1000]), "step": rng.choice([3, 5, 10_000]), "page": rng.choice([1, 2, 16])}
        self.settings = Settings(read_ahead_rows=rng.choice([200_000, 2, 0]), body_cache_bytes=rng.choice([1 << 20, 0]))
        self.witness = Witness(self.clock, self.hooks, self.sizes["let_by"])
        inner = RocksStore.open(directory / "data", cache_bytes=1 << 20) if on_disk else MemoryStore()
        self.store = CutStore(inner, self.witness.see)
        self.danger = rng.choice([0.0, 0.1, 0.3])
        #: Lives differ in what they are mostly about.
        self.habits = {verb: weight * rng.choice([0.3, 1, 1, 4]) for verb, weight in VERBS.items()}
        self.in_streams = rng.choice([0.3, 0.7, 1.0])
        self.streams = STREAMS[: rng.choice([1, 2, 3])]
        self.held: list[Delivery] = []
        self.confirmed: set[bytes] = set()
        self.completed: set[bytes] = set()
        self.tokens: set[tuple[str, str]] = set()
        self.requests: list[tuple[dict[str, Any], Any]] = []
        self.made = 0
        self.cuts = 0
        self.broker = self._open()

    def run(self, steps: int) -> None:
        with self._sizes():
            for name in QUEUES[: self.rng.choice([1, 1, 2])]:
                self.create(name)
            for number in range(steps):
                self.say(f"-- {number}")
                self.step()
            self.drain()

    @contextmanager
    def _sizes(self) -> Iterator[None]:
        """Pages and steps so small that a few messages need several of them."""
        step, page = self.sizes["step"], self.sizes["page"]
        with (
            patch.object(streams, "MAX_LET_BY", self.sizes["let_by"]),
            patch.object(streams, "_PAGE", page),
            patch.object(intents, "STEP_MESSAGES", step),
            patch.object(timers, "STEP", min(step, 1000)),
            patch.object(operators, "_PAGE", page),
        ):
            yield

    # Steps

    def step(self) -> None:
        verb = self.rng.choices(list(self.habits), list(self.habits.values()))[0]
        if self.rng.random() < self.danger:
            nth, trouble = self.rng.choice([1, 1, 1, 2, 3]), self.rng.choice(["before", "after", "after", "power", "full"])
            self.say(f"   trouble: {trouble} at commit {nth}")
            self.store.arm(nth, trouble)  # type: ignore[arg-type]
        trouble: Trouble | str = self.store._trouble
        try:
            getattr(self, verb)()
        except Cut:
            self.say("   cut off")
            self._survive(power=trouble == "power")
        except StoreFull:
            self.say("   the disk was full")
        except (QueueNotFound, QueueFull, QueueExists) as refused:
            self.say(f"   refused: {refused}")
        finally:
            self.store.arm(0, "before")
        self.witness.doing = Doing("nothing")
        self.check()

    def _survive(self, *, power: bool) -> None:
        """Nothing is closed in good order: the broker is dropped, and another opens what is left."""
        self.cuts += 1
        self.broker._timer._unsubscribe()
        if power and isinstance(self.store.inner, MemoryStore):
            self.store.lose_power()
            self.witness.lost_power()
        if self.rng.random() < 0.3:
            self._let_pass(self.rng.choice([500, 6000, 40_000]))
        self._reopen()

    def _reopen(self) -> None:
        self.store = self.store.reopen(self.directory / "data", self.witness.see)
        self.witness.reopened()
        self.witness.doing = Doing("open")
        # What is found at open counts as synced: it was read from the disk.
        self.witness.synced()
        self.broker = self._open()

    def _open(self) -> Broker:
        self.store.on_sync = self.witness.synced
        broker = Broker(self.store, clock=self.clock, settings=self.settings)
        core = broker._core
        core.hooks.close()
        core.hooks = self.hooks  # type: ignore[assignment]
        core.rng = random.Random(self.rng.random())
        core.ids._random_bytes = random.Random(self.rng.random()).randbytes
        return broker

    def _let_pass(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @contextmanager
    def doing(self, verb: str, **fields: Any) -> Iterator[Doing]:
        self.witness.doing = doing = Doing(verb, **fields)
        told = {name: value for name, value in fields.items() if name != "items"}
        self.say(f"   {verb} {told or ''} {[_told(item) for item in fields.get('items', ())] or ''}")
        yield doing

    # Queues and configuration

    def create(self, name: str) -> None:
        options = random_options(self.rng)
        with self.doing("create", queue=name):
            self.say(f"   {options}")
            self.broker.create_queue(name, **options)

    def any_queue(self, dead: float = 0.0) -> str:
        name = self.rng.choice([*(info.name for info in self.broker.queues() if info.source is None), "q"])
        return name + ".dlq" if self.rng.random() < dead else name

    def administer(self) -> None:
        rng, name = self.rng, self.any_queue()
        verb = rng.choice(["create", "create", "update", "update", "pause", "resume", "resume", "purge", "delete", "throttle", "weight", "cancel"])
        with self.doing(verb, queue=name):
            if verb == "create":
                self.create(rng.choice(QUEUES))
            elif verb == "update":
                options = random_options(rng)
                self.say(f"   {options}")
                try:
                    self.broker.update_queue(name, **options)
                except InvalidRequest as refused:
                    if "ordering" not in str(refused):
                        raise
            elif verb == "throttle":
                self.throttle()
            elif verb == "weight":
                self.broker.config.set(f"weight:{name}:{rng.choice(KEYS)}", rng.randint(1, 5))
            elif verb == "cancel":
                for intent in self.broker.intents():
                    if intent.kind == "redrive":
                        self.broker.cancel_intent(intent.intent_id)
            elif verb == "delete":
                self.broker.delete_queue(name)
            elif verb == "purge":
                self.witness.doing.queue = name = name + ".dlq" if rng.random() < 0.2 else name
                self.broker.purge(name)
            else:
                getattr(self.broker, verb)(name)

    def throttle(self) -> None:
        if self.rng.random() < 0.5:
            self.broker.config.set("throttle:t:rate", self.rng.choice([0.2, 2, 50]))
        elif "throttle:t:rate" in self.broker.config.list():
            self.broker.config.delete("throttle:t:rate")

    # Messages in

    def messages(self, most: int) -> list[NewMessage]:
        count = self.rng.randint(1, most)
        self.made += count
        return [random_message(self.rng, b"m%d" % number, self.streams, self.in_streams) for number in range(self.made - count, self.made)]

    def enqueue(self) -> None:
        name, messages = self.any_queue(), self.messages(5)
        with self.doing("enqueue", queue=name, into=[name]):
            self.say(f"   {[(m.payload, m.stream, m.delay, m.ttl) for m in messages]}")
            self._confirm(self.broker.enqueue_many(name, messages))

    def quarantine(self) -> None:
        name, messages = self.any_queue(), self.messages(2)
        with self.doing("quarantine", queue=name):
            self._confirm(self.broker.quarantine(name, messages, reason="validation_failure", error="bad"))

    def _confirm(self, ids: list[str]) -> None:
        self.confirmed |= {find_id(text) or b"" for text in ids}

    # Messages out

    def claim(self) -> None:
        rng, name, consumer = self.rng, self.any_queue(dead=0.1), self.rng.choice(CONSUMERS)
        names = list(dict.fromkeys([name, *(["q"] if rng.random() < 0.2 else [])]))
        limit, most = rng.choice([1, 3, 30]), rng.choice([1, 2, 10])
        with self.doing("claim", queue=name, claims_from=names, consumer=consumer):
            got = self.broker.claim(names, limit=limit, max_per_stream=most, consumer=consumer, started=rng.random() < 0.7)
            self._receive(got)
            if len(got) < limit:
                self._check_nothing_was_left(names)

    def _receive(self, got: list[Delivery]) -> None:
        self.say(f"   got {[d.payload.decode() for d in got]}")
        for d in got:
            must(find_id(d.id) not in self.completed, f"{d.payload!r} was completed, and delivered again")
            must((d.id, d.lease) not in self.tokens, f"{d.payload!r} came twice under one lease token")
            self.tokens.add((d.id, d.lease))
            seen = self.witness.now.messages[d.message.id]
            told = d.attempts, d.deliveries, int(d.progress), len(d.failures), d.seq if seen.seq else 0, d.claim_id
            known = seen.attempts, seen.deliveries, seen.progress, min(seen.failures, 32), seen.seq, seen.claim_id
            must(told == known, f"{d.payload!r} was delivered with {told}, it has {known}")
        runs: dict[tuple[str, str], int] = {}
        for d in got:
            if d.stream and d.seq and d.dead_since is None:
                must(runs.get((d.queue, d.stream), 0) < d.seq, f"a run of {d.stream} is out of order")
                runs[d.queue, d.stream] = d.seq
        self.held += got

    def _check_nothing_was_left(self, names: list[str]) -> None:
        """A claim that got less than it asked for got all that there was."""
        throttled = set("t") if "throttle:t:rate" in self.broker.config.list() else set()
        for record in self.witness.now.queues.values():
            config = record.config
            if self.witness.under_way("purge", record.queue_id):
                continue
            if record.name not in names or record.paused or config.max_unsettled_per_consumer or config.max_unsettled_per_key:
                continue
            left = [seen for seen in self.witness.claimable(record.queue_id) if not throttled & set(seen.throttles)]
            must(not left, f"{[self.witness.say(seen) for seen in left]} could have been claimed")

    def settle(self) -> None:
        items = self.items(4)
        if items:
            self._settle(items)

    def _settle(self, items: list[Settlement]) -> None:
        with self.doing("settle", items=items):
            accepted = self._accepted(items)
            results = self.broker.settle(items)
            must([result.ok for result in results] == accepted, f"expected {accepted}, got {[result.outcome for result in results]}")
            self._hear(items, results)

    def items(self, most: int) -> list[Settlement]:
        """Mostly about deliveries that are held, some about such as were held long ago."""
        rng = self.rng
        live = [d for d in self.held if self._holds(d)]
        chosen = rng.sample(live, min(len(live), rng.randint(1, most))) if live else []
        if self.held and rng.random() < 0.2:
            chosen.append(rng.choice(self.held))
        if rng.random() < 0.5:
            chosen.sort(key=lambda d: d.seq)
        if rng.random() < 0.1 and chosen:
            chosen.append(chosen[0])
        return [self._item(d if rng.random() < 0.7 else DeliveryRef(d.id, d.lease)) for d in chosen]

    def _holds(self, d: Delivery) -> bool:
        seen = self.witness.now.messages.get(d.message.id)
        return seen is not None and seen.where == LEASED and seen.claim_id == d.claim_id

    def _item(self, d: Any) -> Settlement:
        rng = self.rng
        kind = rng.choices([Complete, Fail, Release, Extend, Start], [4, 5, 3, 1, 1])[0]
        if kind is Fail:
            reason = rng.choice(["unknown", "unknown", "handler_exception", "serialization_error"])
            dead = rng.random() < 0.1
            retry_in = rng.choice([None, None, None, "0s", "2s"]) if not dead else None
            return Fail(d, error="no luck", reason=reason, progress=rng.choice([0, 1, 4]), retry_in=retry_in, dead=dead)
        if kind is Release:
            return Release(d, keep_order=rng.random() < 0.3)
        if kind is Extend:
            return Extend(d, rng.choice([None, "1s", "1m"]), progress=rng.choice([0, 2]), carry=rng.choice([None, b"so far"]))
        return kind(d)

    def _hear(self, items: list[Settlement], results: Any) -> None:
        """A stale lease changes nothing; what was confirmed as completed is over."""
        self.say(f"   heard {[(r.outcome, r.rule) for r in results]}")
        for item, result in zip(items, results, strict=True):
            raw_id = find_id(item.delivery.id) or b""
            must(result.outcome != "invalid", f"{item} was refused: {result.error}")
            if result.outcome == "completed":
                self.completed.add(raw_id)

    def _accepted(self, items: list[Settlement], *, in_turns: bool = False) -> list[bool]:
        """Which items must be accepted: the first word on a delivery that is held. An exchange hears them by their kind."""
        over: set[bytes] = set()
        accepted: dict[int, bool] = {}
        for at in sorted(range(len(items)), key=lambda at: TURNS[type(items[at])] if in_turns else 0):
            item = items[at]
            raw_id = find_id(item.delivery.id) or b""
            seen = self.witness.now.messages.get(raw_id)
            held = seen is not None and seen.where == LEASED and f"{seen.claim_id:x}" == item.delivery.lease
            accepted[at] = held and raw_id not in over and bool(seen and self.witness.now.queues[seen.queue_id].name)
            if accepted[at] and type(item) in (Complete, Fail, Release):
                over.add(raw_id)
        return [accepted[at] for at in range(len(items))]

    def part_ways(self) -> None:
        """A worker of a run that fails at its first message and gives back the others: what the switch is for."""
        rng = self.rng
        runs: dict[tuple[str, str, str], list[Delivery]] = {}
        for d in [d for d in self.held if self._holds(d) and d.stream]:
            runs.setdefault((d.queue, d.stream or "", d.lease), []).append(d)
        if not runs:
            return
        first, *others = sorted(rng.choice(list(runs.values())), key=lambda d: d.seq)
        items: list[Settlement] = [Fail(first, retry_in=rng.choice([None, "5s", "1h"])) if rng.random() < 0.8 else Release(first)]
        items += [Release(d, keep_order=rng.random() < 0.4) for d in others if rng.random() < 0.9]
        self._settle(items)
        if rng.random() < 0.3:
            self._release_stream(first.queue, first.stream or "")

    def ack_or_nack(self) -> None:
        leased = [seen for seen in self.witness.now.messages.values() if seen.where == LEASED and self.witness.now.queues[seen.queue_id].name]
        if not leased:
            return
        seen = self.rng.choice(leased)
        name, ref = self.witness.now.queues[seen.queue_id].name, DeliveryRef(show_id(seen.id), f"{seen.claim_id:x}")
        item = self.rng.choice([Complete(ref), Fail(ref)])
        with self.doing("settle", items=[item]):
            result = self.broker.ack(name, ref.id) if isinstance(item, Complete) else self.broker.nack(name, ref.id)
            self._hear([item], [result])

    def goodbye(self) -> None:
        consumer = self.rng.choice(CONSUMERS)
        with self.doing("goodbye", consumer=consumer):
            self.broker.goodbye(consumer)

    # Exchange

    def exchange(self) -> None:
        rng = self.rng
        if self.requests and rng.random() < 0.4:
            self._ask_again()
            return
        items = self.items(3)
        extends, rest = [item for item in items if isinstance(item, Extend)], [item for item in items if not isinstance(item, Extend)]
        names = list({self.any_queue() for _ in range(rng.randint(0, 2))})
        call: dict[str, Any] = {
            "consumer": rng.choice(CONSUMERS), "extend": extends, "settle": rest, "enqueue": {name: self.messages(2) for name in names},
            "request_id": self._request_id(),
        }
        if rng.random() < 0.7:
            call["claim"] = {"queue": self.any_queue(), "limit": rng.choice([1, 4]), "max_per_stream": rng.choice([1, 3])}
        if call["request_id"] is not None:
            self.requests.append((call, None))
        answer = self._exchange(call)
        if call["request_id"] is not None:
            self.requests[-1] = call, answer
        self._receive(answer.deliveries)

    def _exchange(self, call: dict[str, Any]) -> Any:
        items = [*call["extend"], *call["settle"]]
        claims_from = [call["claim"]["queue"]] if "claim" in call else []
        with self.doing("exchange", items=items, claims_from=claims_from, into=list(call["enqueue"]), consumer=call["consumer"]):
            fresh = find_id(call["request_id"]) not in self.witness.now.requests
            accepted = self._accepted(items, in_turns=True)
            answer = self.broker.exchange(**call)
            must(not fresh or [result.ok for result in answer.settled] == accepted, f"expected {accepted}, got {answer.settled}")
            self._hear(items, answer.settled)
            for ids in answer.enqueued.values():
                self._confirm(ids)
            return answer

    def _ask_again(self) -> None:
        """The caller never heard, or wants to be sure: the same answer, and no second effect."""
        at = self.rng.randrange(len(self.requests))
        call, before = self.requests[at]
        raw_id = find_id(call["request_id"]) or b""
        known = raw_id in self.witness.now.requests
        commits = self.store.commits
        try:
            answer = self._exchange(call)
        except RequestExpired:
            must(abs(self.clock.now_ms() - id_time_ms(raw_id)) > REQUEST_KEPT_MS, "a young request was refused")
            return
        if not known:
            must(before is None, "an answered request was forgotten")
            self._receive(answer.deliveries)
        else:
            must(self.store.commits == commits, "a repeated request had an effect")
            if before is not None:
                must((answer.settled, answer.enqueued) == (before.settled, before.enqueued), "a repeated request was answered otherwise")
            for d in answer.deliveries:
                must(self._holds(d), f"a repeated request gave {d.payload!r}, which is not leased under it")
                if (d.id, d.lease) not in self.tokens:
                    self._receive([d])
        self.requests[at] = call, answer

    def _request_id(self) -> str | None:
        if self.rng.random() < 0.1:
            return None
        return str(uuid.UUID(bytes=IdSource(self.rng.randbytes).next(self.clock.now_ms(), 1)[0]))

    # Operators

    def operate(self) -> None:
        rng, name = self.rng, self.any_queue(dead=0.1)
        verb = rng.choice(OPERATOR_VERBS)
        if verb == "release_stream":
            self._release_stream(name, rng.choice(self.streams))
        elif verb in ("drain", "prune"):
            with self.doing(verb, queue=name):
                getattr(self.broker, verb)(name)
        else:
            everyone = [show_id(seen.id) for seen in self.witness.now.messages.values()]
            by_filter = rng.random() < 0.15
            ids = None if by_filter else rng.sample(everyone, min(len(everyone), rng.randint(1, 3)))
            with self.doing(verb, queue=name, ids=ids):
                result = getattr(self.broker, verb)(name, ids, filter=random_filter(rng) if by_filter else None)
                self.say(f"   {len(result.changed)} changed")

    def _release_stream(self, name: str, stream: str) -> None:
        with self.doing("release_stream", queue=name, stream=stream):
            self.say(f"   {self.broker.release_stream(name, stream)}")

    def redrive(self) -> None:
        rng, name = self.rng, self.any_queue(dead=0.3)
        with self.doing("redrive", queue=name):
            rate = rng.choice([None, None, 0.5, 20])
            dead = [seen for seen in self.witness.now.messages.values() if seen.dead_since]
            ids = [show_id(seen.id) for seen in rng.sample(dead, min(2, len(dead)))] if rate is None and rng.random() < 0.4 else None
            self.broker.redrive(
                name, ids=ids, filter=random_filter(rng), count=rng.choice([None, None, 2]), rate=rate, clear_progress=rng.random() < 0.2
            )

    # Time

    def advance(self) -> None:
        ms = self.rng.choice([1, 500, 2000, 2000, 6000, 11_000, 40_000, 700_000 if self.rng.random() < 0.2 else 1000])
        with self.doing("advance"):
            self.say(f"   {ms} ms")
            self.clock.advance(ms=ms)

    def set_clock(self) -> None:
        ms = self.rng.choice([-3_600_000, -5000, -300, 300, 5000, 60_000])
        with self.doing("set the clock"):
            self.say(f"   by {ms} ms")
            self.clock.jump(ms=ms)

    def restart(self) -> None:
        with self.doing("restart"):
            self.broker.close()
            self._let_pass(self.rng.choice([0, 0, 3000]))
            self._reopen()

    def look(self) -> None:
        """Questions change nothing and do not fail, whatever the state."""
        name = self.any_queue()
        with self.doing("look", queue=name):
            commits = self.store.commits
            self.broker.failure_metrics(name)
            self.broker.stats(name, keys=True)
            self.broker.explain_queue(name)
            for seen in list(self.witness.now.messages.values())[:3]:
                if self.witness.now.queues[seen.queue_id].name:
                    self.broker.explain(show_id(seen.id))
            must(self.store.commits == commits, "a question changed something")

    # What must hold

    def check(self) -> None:
        problems = check_laws(self.store)
        must(not problems, "; ".join(problems))
        now = self.witness.now
        stored = set(self.store.ids_between(b"\0" * 16, b"\xff" * 16, 1 << 30))
        must(stored == set(now.messages), f"stored are {len(stored)} messages, known {len(now.messages)}")
        lost = [show_id(raw_id) for raw_id in self.confirmed if raw_id not in now.messages and raw_id not in now.gone]
        must(not lost, f"confirmed, and nowhere: {lost}")
        undone = [now.messages[raw_id] for raw_id in self.completed if raw_id in now.messages]
        must(not undone, f"confirmed as completed, and still there: {[self.witness.say(seen) for seen in undone]}")
        self._check_places()
        self._check_fronts()
        core = self.broker._core
        in_memory = {lease.id: (lease.claim_id, lease.expires_ms, lease.started, lease.row) for lease in core.leases.all()}
        must(in_memory == {lease.id: (lease.claim_id, lease.expires_ms, lease.started, lease.row) for lease in self.store.leases()}, "the lease book")
        must(set(core.intents) == {intent.intent_id for intent in self.store.intents()}, "the intents in memory are not those in the store")

    def _check_places(self) -> None:
        seen_where = {seen.id: (seen.where, seen.due_ms if seen.where == WAITING else seen.claim_id) for seen in self.witness.now.messages.values()}
        stored: dict[bytes, tuple[str, int]] = {lease.id: (LEASED, lease.claim_id) for lease in self.store.leases()}
        for record in self.store.queues():
            stored |= {spot.row[8:24]: (WAITING, spot.due_ms) for spot in self.store.waiting(record.queue_id, None, 1 << 30)}
        for raw_id, where in seen_where.items():
            must(stored.get(raw_id, (READY, 0)) == where, f"{self.witness.say(self.witness.now.messages[raw_id])} is stored as {stored.get(raw_id)}")
        states = dict(zip(seen_where, self.store.states(list(seen_where)), strict=True))
        for raw_id, seen in self.witness.now.messages.items():
            state = states[raw_id]
            kept = (state.attempts, len(state.failures) + state.failures_cut, state.progress) if state else (0, 0, 0)
            must(kept == (seen.attempts, seen.failures, seen.progress), f"{self.witness.say(seen)} is stored with {kept}")

    def _check_fronts(self) -> None:
        """Who stands in the ready rows for a stream is who the rules of order say, in the engine's own words and in ours."""
        standing: dict[tuple[int, str], int] = {}
        for record in self.store.queues():
            for spot in self.store.ready(record.queue_id, b"", None, 1 << 30):
                if row_stream(spot.row):
                    standing[record.queue_id, row_stream(spot.row)] = row_place(spot.row)
        for queue_id, stream in self.witness.streams():
            front = self.witness.front(queue_id, stream)
            have = standing.pop((queue_id, stream), 0)
            must(have == (front.seq if front else 0), f"the front of {stream} is {have}, not {front and self.witness.say(front)}")
            (stored,) = self.store.streams(queue_id, [stream])
            rows = [row.seq for row in self.store.stream_rows(queue_id, stream, 0, 1 << 30)]
            behind = [seen.seq for seen in self.witness.members(queue_id, stream)][1:]
            must(rows == behind, f"behind the first of {stream} are {rows}, not {behind}")
            found = streams.StreamDraft(self.broker._core, queue_id, stream, stored).find_front()
            must(have == (found.seq if found else 0), f"the front of {stream} is {have}, find_front says {found and found.seq}")
        must(not standing, f"fronts of streams without messages: {standing}")

    # The end

    def drain(self) -> None:
        """With nothing in the way, everything can be worked off: nothing is stuck, and nothing is left behind."""
        self.say("-- drain")
        broker = self.broker
        self.witness.doing = Doing("drain down")
        for key in broker.config.list():
            broker.config.delete(key)
        names = [info.name for info in broker.queues()]
        for name in names:
            broker.resume(name)
        for name in [name for name in names if not name.endswith(".dlq")]:
            broker.update_queue(
                name, max_unsettled_per_key=0, max_unsettled_per_consumer=0, failure_breaker=None, dead_retention=None, max_deliveries=0,
                on_enqueue=None, on_failure=None, ttl=None,
            )
            with self.doing("unhold", queue=name):
                broker.unhold(name, filter=DeadFilter())
        self._work_off(names)
        while any(seen.dead_since for seen in self.witness.now.messages.values()):
            with self.doing("advance"):
                # A dead letter that is leased is not redriven.
                self.clock.advance(seconds=60)
            for name in names:
                with self.doing("redrive", queue=name):
                    broker.redrive(name)
            self._work_off(names)
        with self.doing("advance"):
            # Requests are kept for twenty minutes, whatever the clock did meanwhile; sweeps are a minute apart.
            for _ in range(4):
                self.clock.advance(seconds=3600)
        self.check()
        must(not self.witness.now.messages, f"left: {[self.witness.say(seen) for seen in self.witness.now.messages.values()]}")
        must(not self.store.intents() and not self.store.claims(), "long operations or claims are left")
        must(not self.store.requests_before(b"\xff" * 16, 10), "remembered requests are left")
        for record in self.store.queues():
            rows = [row.seq for stream in STREAMS for row in self.store.stream_rows(record.queue_id, stream, 0, 10)]
            left = [*self.store.streams_after(record.queue_id, "", 10), *rows, *self.store.dedup_over(record.queue_id, 1 << 62, 10)]
            must(not left, f"streams or windows are left in {record.name}: {left}")
        broker.close()

    def _work_off(self, names: list[str]) -> None:
        live = [name for name in names if not name.endswith(".dlq")]
        for _ in range(200):
            with self.doing("claim", claims_from=live):
                got = self.broker.claim(live, limit=50, max_per_stream=50) if live else []
                self._receive(got)
            if got:
                items = [Complete(d) for d in got]
                with self.doing("settle", items=items):
                    self._hear(items, self.broker.settle(items))
            else:
                with self.doing("advance"):
                    self.clock.advance(seconds=60)
            self.check()
            if not any(not seen.dead_since for seen in self.witness.now.messages.values()) and not self.store.intents():
                return
        raise BrokenPromise(f"stuck: {[self.witness.say(seen) for seen in self.witness.now.messages.values() if not seen.dead_since]}")


VERBS = {
    "enqueue": 22, "claim": 22, "settle": 20, "part_ways": 8, "ack_or_nack": 2, "exchange": 8, "operate": 8, "redrive": 2, "quarantine": 1,
    "goodbye": 1, "advance": 8, "set_clock": 1, "restart": 2, "administer": 4, "look": 2,
}  # fmt: skip

OPERATOR_VERBS = ["retry", "drop", "done", "bury", "hold", "hold", "unhold", "fail", *["release_stream"] * 4, "drain", "prune"]


def must(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromise(what)


def _told(item: Any) -> str:
    fields = {name: getattr(item, name) for name in item.__struct_fields__ if name not in ("delivery", "error")}
    d = item.delivery
    who = d.payload.decode() if isinstance(d, Delivery) else d.id[-8:]
    return f"{type(item).__name__}({who}, {', '.join(f'{name}={value}' for name, value in fields.items() if value)})"
