"""A run: steps drawn from a seed, carried out on both engines, and their answers in a form that can be
compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import asdict, replace

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release, SettleResult, Start
from fairlead.errors import FairleadError
from fairlead.model.ids import find_id, show_id
from fairlead.model.settle import DeliveryRef
from fairlead.model.views import OperatorResult, QueueStats
from fairlead.request import Request
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigGet, ConfigList, ConfigSet
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Bury, Done, Drop, FailLeased, Hold, Reset, Retry, Unhold
from fairlead.verbs.queues import CreateQueue, ListQueues, Pause, Resume
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle

#: What may differ in an answer, and why.
DIFFERENCES = {
    "ids": "each engine makes its own; a message is known by its place in the order of enqueues",
    "claim ids": "as above; a claim is known by the step that made it",
    "order of a repeated claim": "it gives again what is still leased under its token, in no promised order",
    "lease in the error of an expiry": "the new engine names the lease that ran out, also after an extension",
    "active_keys, keys, totals": "the new engine does not show them yet, or counts lanes that ran dry earlier",
}
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LEASE = re.compile(r"its lease of \w+")
QUEUES = ("first", "second")
OPERATIONS: tuple[Callable[..., Request[Any]], ...] = (
    Ack,
    Nack,
    Retry,
    Reset,
    Drop,
    Done,
    Bury,
    Hold,
    partial(Hold, error="look at it", reason="poison_message"),
    Unhold,
    FailLeased,
)
CONSUMERS = ("a", "b", "")


@dataclass
class Side:
    """One engine, with the names that its ids have in the run."""

    do: Callable[[Request[Any]], Any]
    clock: ManualClock
    names: dict[bytes, int] = field(default_factory=dict)
    #: Deliveries in the order of their claims: the run settles them by their index.
    deliveries: list[Delivery] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def carry_out(self, request: Request[Any]) -> Any:
        try:
            answer = self.do(request)
        except FairleadError as refused:
            said = _ID.sub(lambda found: f"message {self.named(found[0])}", str(refused))
            return type(refused).__name__, refused.code, said
        for shown in _enqueued(request, answer):
            raw_id = find_id(shown)
            assert raw_id is not None
            self.names.setdefault(raw_id, len(self.names))
        if isinstance(request, Claim):
            answer = self._in_order(request, answer)
            self.deliveries += answer
        return self.compared(answer)

    def named(self, shown: str) -> int | None:
        return self.names.get(find_id(shown) or b"")

    def _in_order(self, claim: Claim, found: list[Delivery]) -> list[Delivery]:
        """As delivered; a repeated claim has an order of its own in each engine."""
        if claim.token is None or claim.token not in self.tokens:
            self.tokens.add(claim.token)
            return found
        return sorted(found, key=lambda delivery: self.names[delivery.raw_id])

    def id_at(self, share: float) -> str:
        """The id of the message at that share of all messages; beyond, one that no message has."""
        ids = [*self.names, bytes(6) + b"\x70" + bytes(9)]
        return show_id(ids[int(share * len(ids))])

    def compared(self, answer: Any) -> Any:
        match answer:
            case OperatorResult():
                changed, skipped = answer.changed, answer.skipped
                return [self.named(one) for one in changed], [(self.named(one), why) for one, why in skipped]
            case list():
                return [self.compared(part) for part in answer]
            case str():
                raw_id = find_id(answer)
                return answer if raw_id is None else self.names[raw_id]
            case Delivery():
                return self._delivery(answer)
            case SettleResult():
                name = self.names.get(answer.raw_id)
                return name, answer.outcome, answer.rule, answer.due_ms, answer.lease_until, answer.error
            case QueueStats():
                counts = answer.ready, answer.waiting, answer.leased, answer.dead, answer.done, answer.bytes
                return counts, answer.consumers, answer.paused
        return answer

    def _delivery(self, delivery: Delivery) -> tuple[Any, ...]:
        return (
            self.names[delivery.raw_id],
            delivery.payload,
            delivery.headers,
            (delivery.queue, delivery.source, delivery.fairness_key, delivery.weight, delivery.throttle_keys),
            (delivery.attempts, delivery.deliveries, int(delivery.progress), delivery.carry),
            (delivery.enqueued_at, delivery.lease_until, delivery.dead_since),
            [replace(failure, error=_LEASE.sub("its lease", failure.error)) for failure in delivery.failures],
        )


class Run:
    """Draws the next step from its seed and from how many deliveries there were, never from an answer that
    could differ.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._keys = [f"k{n}" for n in range(self._random.choice((1, 3, 12)))]
        self._weighted = self._random.random() < 0.5
        #: How often a message has a delay, a time to live or a dedup key.
        self._special = self._random.choice((0.0, 0.1, 0.6))
        self._throttled = self._random.choice((0.0, 0.0, 0.3, 1.0))
        self._body = 0
        self._draws = self._random.choice((_STEPS, _STEPS | {"claim": 6}, _STEPS | {"enqueue": 8}))

    def first_steps(self) -> list[Request[Any]]:
        return [CreateQueue(name, self._options()) for name in QUEUES]

    def next_step(self, delivered: int) -> Request[Any] | Callable[[Side], Request[Any]] | int:
        """A request, or a number of milliseconds to let pass."""
        random = self._random
        (kind,) = random.choices(list(self._draws), list(self._draws.values()))
        match kind:
            case "enqueue":
                return self._enqueue()
            case "claim":
                return self._claim()
            case "settle":
                return Settle(
                    [self._item(random.randrange(delivered)) for _ in range(random.randint(1, 6))]
                    if delivered
                    else []
                )
            case "pass":
                return random.choice((1, 50, 400, 5_000, 40_000))
            case "operate":
                return self._operation(delivered)
            case "configure":
                return self._configuration()
            case "goodbye":
                return Goodbye(random.choice(CONSUMERS))
            case "pause":
                return random.choice((Pause, Resume, Resume))(random.choice((*QUEUES, "unknown")))
            case _:
                return random.choice(
                    (Stats(random.choice(QUEUES)), Stats("first.dlq"), ListQueues("f"), Twin("first", "d1"))
                )

    def _options(self) -> dict[str, Any]:
        random = self._random
        drawn: dict[str, Any] = {"visibility_timeout": random.choice(("500ms", "10s", "1h"))}
        drawn["retry"] = random.choice(
            (
                {"policy": "none"},
                {"policy": "immediate"},
                {"policy": "immediate", "attempts": 2},
                {"policy": "fixed", "cooldown": "300ms", "attempts": 4},
                {"policy": "exponential", "base": "100ms", "cap": "1s"},
            )
        )
        for option, values in {
            "max_attempts": (0, 0, 3),
            "max_deliveries": (0, 0, 4),
            "quantum": (1, 1, 3),
            "max_messages": (0, 0, 25),
            "max_unsettled_per_consumer": (0, 0, 5),
            "ttl": (None, None, "45s"),
            "expired_to_dead": (False, True),
            "dedup": ("5m", "live", "2s"),
        }.items():
            drawn[option] = random.choice(values)
        return drawn

    def _message(self) -> NewMessage:
        random = self._random
        self._body += 1
        weight = random.choice((1, 1, 2, 5)) if self._weighted else 1
        headers = {"n": str(self._body)} if random.random() < 0.2 else None
        payload = b"%d" % self._body + b"." * random.choice((0, 0, 900, 9_000))
        message = NewMessage(payload, headers, random.choice(self._keys), weight)
        if random.random() < self._throttled:
            message = replace(message, throttle_keys=random.choice((["t1"], ["t2"], ["t2", "t1"], ["t3"])))
        if random.random() < self._special:
            return replace(
                message,
                delay=random.choice((None, "0s", "30ms", "600ms", "20s")),
                ttl=random.choice((None, None, "0s", "40ms", "6s")),
                dedup_key=random.choice((None, "d1", "d2", "d3")),
            )
        return message

    def _enqueue(self) -> Request[Any]:
        queue = self._random.choice(
            (*QUEUES, QUEUES[0], "first.dlq") if self._random.random() < 0.1 else QUEUES
        )
        if self._random.random() < 0.1:
            return Quarantine(queue, [self._message() for _ in range(2)], "validation_failure", "bad row")
        if self._random.random() < 0.4:
            message = self._message()
            return Enqueue(queue, **asdict(message))
        return EnqueueMany(queue, [self._message() for _ in range(self._random.choice((0, 1, 3, 10, 40)))])

    def _claim(self) -> Request[Any]:
        random = self._random
        queue = random.choice(
            (*QUEUES, QUEUES[0], ["first", "second"], "first.dlq", ["second", "second.dlq"])
        )
        return Claim(
            queue,
            random.choice((1, 1, 2, 5, 30)),
            consumer=random.choice(CONSUMERS),
            token=random.choice((None, None, None, "t1", "t2")),
            started=random.random() < 0.7,
        )

    def _configuration(self) -> Request[Any]:
        random = self._random
        key = random.choice(("throttle:t1:rate", "throttle:t2:rate", "throttle:t1:burst", "throttle.t2"))
        if random.random() < 0.3:
            key = f"weight:first:{random.choice(self._keys)}"
        if random.random() < 0.25:
            return ConfigDelete(key)
        if random.random() < 0.1:
            return random.choice((ConfigGet(key), ConfigList("thr")))
        return ConfigSet(key, "2,3" if key == "throttle.t2" else random.choice(("1", "5", "0.4", "20")))

    def _operation(self, delivered: int) -> Callable[[Side], Request[Any]]:
        """By ids of messages that were delivered or enqueued, or never existed."""
        random = self._random
        kind, dry_run = random.choice(OPERATIONS), random.random() < 0.2
        chosen = [random.random() for _ in range(random.choice((1, 1, 3)))]
        queue = random.choice((*QUEUES, "first.dlq"))
        if kind in (Ack, Nack):
            return lambda side: kind(queue, side.id_at(chosen[0]))
        return lambda side: kind(queue, [side.id_at(share) for share in chosen], dry_run=dry_run)

    def _item(self, at: int) -> Callable[[Side], Any]:
        random = self._random
        duration = random.choice((None, "200ms", "1m", "1ms"))
        make = random.choice(
            (
                Complete,
                Complete,
                lambda one: Fail(one, error="no", reason="dependency_failure", progress=4),
                lambda one: Fail(one, retry_in="700ms"),
                lambda one: Fail(one, dead=True),
                Release,
                lambda one: Extend(one, duration),
                lambda one: Extend(one, duration, progress=2, carry=b"half"),
                Start,
                lambda one: Complete(DeliveryRef(one.id, "0")),
            )
        )
        return lambda side: make(side.deliveries[at])


_STEPS = {
    "enqueue": 4,
    "claim": 5,
    "settle": 5,
    "pass": 2,
    "operate": 4,
    "configure": 2,
    "goodbye": 1,
    "pause": 1,
    "look": 1,
}


def _enqueued(request: Request[Any], answer: Any) -> list[str]:
    """The ids of the messages that the request enqueued, duplicates included."""
    if isinstance(request, Enqueue):
        return [answer]
    if isinstance(request, (EnqueueMany, Quarantine)):
        return list(answer)
    return []


def for_side(step: Request[Any] | Callable[[Side], Request[Any]], side: Side) -> Request[Any]:
    """Messages and deliveries have other ids on each side."""
    if not isinstance(step, Request):
        return step(side)
    if isinstance(step, Settle):
        return Settle([item(side) for item in step.items])
    return step
