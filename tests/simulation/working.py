"""What producers and consumers do: enqueue, claim, settle, exchange, and what they are owed in return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead import Complete, Extend, Fail, NewMessage, Release, Start
from fairlead.errors import InvalidRequest, RequestExpired, SessionExpired
from fairlead.model import shown_times
from fairlead.model.delivery import Delivery
from fairlead.model.ids import find_id, show_id
from fairlead.model.settle import DeliveryRef, LeaseRef, Settlement
from fairlead.store.rows import answer_key, session_key
from tests.simulation.picture import LEASED, BrokenPromise, must
from tests.simulation.running import Running
from tests.simulation.traffic import CONSUMERS, random_message
from tests.turns import Turn, turn

#: When in an exchange each kind of item takes effect.
TURNS: dict[type, int] = {Extend: 0, Start: 0, Complete: 1, Fail: 2, Release: 3}


class Working(Running):
    # Messages in

    def messages(self, most: int) -> list[NewMessage]:
        count = self.rng.randint(1, most)
        self.made += count
        return [
            random_message(self.rng, b"m%d" % number, self.streams, self.in_streams)
            for number in range(self.made - count, self.made)
        ]

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
            got = self.broker.claim(
                names, limit=limit, max_per_stream=most, consumer=consumer, started=rng.random() < 0.7
            )
            self._receive(got)
            # A claim over several queues that finds the disk full gives what it has.
            if len(got) < limit and not self.store.struck:
                self._check_nothing_was_left(names)

    def _receive(self, got: list[Delivery]) -> None:
        self.say(f"   got {[d.payload.decode() for d in got]}")
        for d in got:
            must(find_id(d.id) not in self.completed, f"{d.payload!r} was completed, and delivered again")
            must((d.id, d.lease) not in self.tokens, f"{d.payload!r} came twice under one lease token")
            self.tokens.add((d.id, d.lease))
            seen = self.witness.now.messages[d.message.id]
            told = (
                d.attempts,
                d.deliveries,
                int(d.progress),
                len(d.failures),
                d.seq if seen.seq else 0,
                d.claim_id,
            )
            known = (
                seen.attempts,
                seen.deliveries,
                seen.progress,
                min(seen.failures, 32),
                seen.seq,
                seen.claim_id,
            )
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
            if self.witness.now.under_way("purge", record.queue_id):
                continue
            if (
                record.name not in names
                or record.paused
                or config.max_unsettled_per_consumer
                or config.max_unsettled_per_key
            ):
                continue
            left = [
                seen
                for seen in self.witness.now.claimable(record.queue_id)
                if not throttled & set(seen.throttles)
            ]
            must(not left, f"{[self.witness.say(seen) for seen in left]} could have been claimed")

    def settle(self) -> None:
        items = self.items(4)
        if items:
            self._settle(items)

    def _settle(self, items: list[Settlement]) -> None:
        with self.doing("settle", items=items):
            accepted = self._accepted(items)
            results = self.broker.settle(items)
            must(
                [result.ok for result in results] == accepted,
                f"expected {accepted}, got {[result.outcome for result in results]}",
            )
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
        return [self._item(self._named(d, rng.random())) for d in chosen]

    def _named(self, d: Delivery, draw: float) -> Any:
        return (
            d
            if draw < 0.5
            else LeaseRef(d.message.id, d.claim_id)
            if draw < 0.8
            else DeliveryRef(d.id, d.lease)
        )

    def _holds(self, d: Delivery) -> bool:
        seen = self.witness.now.messages.get(d.message.id)
        return seen is not None and seen.where == LEASED and seen.claim_id == d.claim_id

    def _item(self, d: Any) -> Settlement:
        rng = self.rng
        kind: Any = rng.choices([Complete, Fail, Release, Extend, Start], [4, 5, 3, 1, 1])[0]
        if kind is Fail:
            reason = rng.choice(["unknown", "unknown", "handler_exception", "serialization_error"])
            dead = rng.random() < 0.1
            retry_in = rng.choice([None, None, None, "0s", "2s"]) if not dead else None
            return Fail(
                d,
                error="no luck",
                reason=reason,
                progress=rng.choice([0, 1, 4]),
                retry_in=retry_in,
                dead=dead,
            )
        if kind is Release:
            return Release(d, keep_order=rng.random() < 0.3)
        if kind is Extend:
            return Extend(
                d,
                rng.choice([None, "1s", "1m"]),
                progress=rng.choice([0, 2]),
                carry=rng.choice([None, b"so far"]),
            )
        return kind(d)

    def _hear(self, items: Sequence[Settlement], results: Any) -> None:
        """A stale lease changes nothing; what was confirmed as completed is over."""
        self.say(f"   heard {[(r.outcome, r.rule) for r in results]}")
        for item, result in zip(items, results, strict=True):
            raw_id = find_id(item.delivery.id) or b""
            must(result.outcome != "invalid", f"{item} was refused: {result.error}")
            if result.outcome == "completed":
                self.completed.add(raw_id)

    def _accepted(self, items: list[Settlement], *, in_turns: bool = False) -> list[bool]:
        """Which items must be accepted: the first word on a delivery that is held. An exchange hears them by
        their kind.
        """
        over: set[bytes] = set()
        accepted: dict[int, bool] = {}
        for at in sorted(range(len(items)), key=lambda at: TURNS[type(items[at])] if in_turns else 0):
            item = items[at]
            raw_id = find_id(item.delivery.id) or b""
            seen = self.witness.now.messages.get(raw_id)
            held = seen is not None and seen.where == LEASED and f"{seen.claim_id:x}" == item.delivery.lease
            accepted[at] = (
                held and raw_id not in over and bool(seen and self.witness.now.queues[seen.queue_id].name)
            )
            if accepted[at] and type(item) in (Complete, Fail, Release):
                over.add(raw_id)
        return [accepted[at] for at in range(len(items))]

    def part_ways(self) -> None:
        """A worker of a run that fails at its first message and gives back the others: what the switch is
        for.
        """
        rng = self.rng
        runs: dict[tuple[str, str, str], list[Delivery]] = {}
        for d in [d for d in self.held if self._holds(d) and d.stream]:
            runs.setdefault((d.queue, d.stream or "", d.lease), []).append(d)
        if not runs:
            return
        first, *others = sorted(rng.choice(list(runs.values())), key=lambda d: d.seq)
        items: list[Settlement] = [
            Fail(first, retry_in=rng.choice([None, "5s", "1h"])) if rng.random() < 0.8 else Release(first)
        ]
        items += [Release(d, keep_order=rng.random() < 0.4) for d in others if rng.random() < 0.9]
        self._settle(items)
        if rng.random() < 0.3:
            self.release_stream(first.queue, first.stream or "")

    def release_stream(self, name: str, stream: str) -> None:
        with self.doing("release_stream", queue=name, stream=stream):
            try:
                self.say(f"   {self.broker.release_stream(name, stream)}")
            except InvalidRequest:
                now = self.witness.now
                ids = [record.queue_id for record in now.queues.values() if record.name == name]
                must(not any(now.members(queue_id, stream) for queue_id in ids), f"stream {stream!r} is live")

    def ack_or_nack(self) -> None:
        leased = [
            seen
            for seen in self.witness.now.messages.values()
            if seen.where == LEASED and self.witness.now.queues[seen.queue_id].name
        ]
        if not leased:
            return
        seen = self.rng.choice(leased)
        name, ref = (
            self.witness.now.queues[seen.queue_id].name,
            DeliveryRef(show_id(seen.id), f"{seen.claim_id:x}"),
        )
        item = self.rng.choice([Complete(ref), Fail(ref)])
        with self.doing("settle", items=[item]):
            result = (
                self.broker.ack(name, ref.id)
                if isinstance(item, Complete)
                else self.broker.nack(name, ref.id)
            )
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
        if rng.random() < 0.1:
            self._send_late_copy()
            return
        names = list({self.any_queue() for _ in range(rng.randint(0, 2))})
        call: dict[str, Any] = {
            "consumer": rng.choice(CONSUMERS),
            "settle": self.items(3),
            "enqueue": {name: self.messages(2) for name in names},
            "place": self._place(),
        }
        if rng.random() < 0.7:
            call["claim"] = {
                "queue": self.any_queue(),
                "limit": rng.choice([1, 4]),
                "max_per_stream": rng.choice([1, 3]),
            }
        if call["place"] is not None:
            self.requests.append((call, None))
        answer = self._exchange(call)
        if call["place"] is not None:
            self.requests[-1] = call, answer
        self._receive(answer.deliveries)

    def _exchange(self, call: dict[str, Any]) -> Any:
        items = call["settle"]
        claims_from = [call["claim"]["queue"]] if "claim" in call else []
        into, place = list(call["enqueue"]), call["place"]
        with self.doing(
            "exchange",
            items=items,
            claims_from=claims_from,
            into=into,
            consumer=call["consumer"],
            arrived=b"" if place is None else _key(place, place["arrived"]),
        ):
            fresh = place is None or _key(place) not in self.witness.now.requests
            accepted = self._accepted(items, in_turns=True)
            answer = turn(self.broker, **call)
            must(
                not fresh or [result.ok for result in answer.settled] == accepted,
                f"expected {accepted}, got {answer.settled}",
            )
            self._hear(items, answer.settled)
            for ids in answer.enqueued.values():
                self._confirm(ids)
            # In the store's time: the wall clock may be stepped before the same answer is asked for again.
            return Turn(*shown_times.shown(list(answer), -self.stored.ahead_ms))

    def _ask_again(self) -> None:
        """The caller never heard, or wants to be sure: the same answer, and no second effect."""
        at = self.rng.randrange(len(self.requests))
        call, before = self.requests[at]
        key = _key(call["place"])
        is_old = key in self.witness.now.forgotten
        known = key in self.witness.now.requests
        commits = self.store.commits
        try:
            answer = self._exchange(call)
        except SessionExpired:
            must(not known, "a request that is remembered was refused")
            must(
                is_old or before is None or not _must_last(call, before), "an answered request was forgotten"
            )
            del self.requests[at]
            return
        must(not is_old, "an old request was carried out again")
        if not known:
            must(before is None or not _must_last(call, before), "an answered request was forgotten")
            self._receive(answer.deliveries)
        else:
            must(self.store.commits == commits, "a repeated request had an effect")
            if before is not None:
                must(
                    (answer.settled, answer.enqueued) == (before.settled, before.enqueued),
                    "a repeated request was answered otherwise",
                )
            for d in answer.deliveries:
                must(self._holds(d), f"a repeated request gave {d.payload!r}, which is not leased under it")
                if (d.id, d.lease) not in self.tokens:
                    self._receive([d])
        self.requests[at] = call, answer

    def _acknowledge(self) -> int:
        """Up to where answers have come in, in order; the caller will not send these requests again."""
        for _ in range(self.rng.choice([0, 1, 1, 3])):
            if not self.requests or self.requests[0][1] is None:
                break
            (call, _answer) = self.requests.pop(0)
            self.acknowledged.append(call)
            self.arrived = call["place"]["number"]
        return self.arrived

    def _send_late_copy(self) -> None:
        """One that was held up on its way while another was carried out and answered: it has no effect."""
        forgotten = self.witness.now.forgotten
        late = [call for call in self.acknowledged if forgotten.get(_key(call["place"])) == "answered"]
        if not late:
            return
        commits, call = self.store.commits, self.rng.choice(late)
        with self.doing("late copy"):
            try:
                turn(self.broker, **call)
            except (SessionExpired, RequestExpired) as refused:
                self.say(f"   {refused}")
            else:
                raise BrokenPromise("a request that was answered was carried out again")
            must(self.store.commits == commits, "a late copy of a request had an effect")

    def _place(self) -> dict[str, Any] | None:
        """The next one in the caller's session. One that was forgotten, or lost in a power cut, begins anew."""
        if self.rng.random() < 0.1:
            return None
        with self.doing("open_session"):
            name = self.session or f"session {self.made}"
            if self.session and self.broker.open_session(name).last == 0 < self.number:
                name = f"session {self.made}, {self.number}"
            if name != self.session:
                self.broker.open_session(name)
                self.session, self.number, self.arrived = name, 0, 0
                self.requests, self.acknowledged = [], []
        self.number += 1
        return {"session": name, "number": self.number, "arrived": self._acknowledge()}


def _key(place: dict[str, Any], number: int | None = None) -> bytes:
    """The session and the number of a request."""
    return answer_key(session_key(None, place["session"]), place["number"] if number is None else number)


def _must_last(call: dict[str, Any], answer: Turn) -> bool:
    """Whether the request had an effect that a power cut must not undo.

    A power cut may undo a start, a mere extension or a claim, and then the answer of a request that did nothing else. The
    same holds of the answer of a request that changed nothing, because all its deliveries were over.
    """
    lasting = [
        item
        for item, result in zip(call["settle"], answer.settled, strict=True)
        if result.ok
        and not isinstance(item, Start)
        and not (isinstance(item, Extend) and not item.progress and item.carry is None)
    ]
    return bool(call["enqueue"] or lasting)
