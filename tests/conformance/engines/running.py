"""A run: steps drawn from a seed, carried out on an engine, and its answers in a form that can be
compared.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release, SettleResult, Start
from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import FairleadError, Unavailable
from fairlead.model.access import KeyInfo, NewKey
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.failure import FailureRecord
from fairlead.model.ids import find_id, show_id
from fairlead.model.intent import Intent
from fairlead.model.settle import DeliveryRef
from fairlead.model.views import (
    Explanation,
    FailureMetrics,
    MessageInfo,
    OperatorResult,
    QueueStats,
    Reason,
    RedriveResult,
    ThrottleStats,
)
from fairlead.request import LOCAL, Caller, Request
from fairlead.runbook.model import QueueSpec, Runbook, dump_runbook
from fairlead.testing import ManualClock
from fairlead.verbs.browse import Browse, BrowseSplits
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigGet, ConfigList, ConfigSet
from fairlead.verbs.consumers import ConsumersCeiling, ConsumersRead
from fairlead.verbs.dead_letters import CancelIntent, Intents, Redrive
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Explain, ExplainQueue, Find, GetFailureMetrics, Peek, Stats
from fairlead.verbs.keys import (
    KeysChangeGrants,
    KeysCreate,
    KeysList,
    KeysRevoke,
    KeysRotate,
    KeysSetGrants,
    KeysShow,
)
from fairlead.verbs.operate import (
    Bury,
    Done,
    Drain,
    Drop,
    FailLeased,
    Hold,
    Prune,
    ReleaseStream,
    Reset,
    Retry,
    Unhold,
)
from fairlead.verbs.queues import CreateQueue, DeleteQueue, ListQueues, Pause, Purge, Resume, UpdateQueue
from fairlead.verbs.runbooks import RunbooksGet, RunbooksList, RunbooksSave
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle
from fairlead.verbs.staging import StagingPublish
from fairlead.verbs.throttles import CloseThrottle, OpenThrottle, Throttles
from tests.conformance.engines.consumer_steps import consumer_step
from tests.conformance.engines.staging_steps import StagingSteps

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GENERATION = re.compile(r"generation \d+( of consumer '\w+', got) \d+")
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
RUNBOOKS = (
    "{}",
    "no runbook",
    dump_runbook(Runbook("shop")),
    *[
        dump_runbook(
            Runbook(project, {"tickets": QueueSpec("tickets", kind="external", list=("a",), take=("b",))})
        )
        for project in (None, "shop")
    ],
)
GRANTS = ("produce:first", "consume:*", "admin:shop/*", "no such right")


class Called(NamedTuple):
    """A request with its caller."""

    request: Request[Any]
    caller: Caller


@dataclass
class Side:
    """One engine, with the names that its ids have in the run."""

    do: Callable[..., Any]
    clock: ManualClock
    names: dict[bytes, int] = field(default_factory=dict)
    #: Deliveries in the order of their claims: the run settles them by their index.
    deliveries: list[Delivery] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    #: Whether the keys that take turns are compared.
    compares_turns: bool = True
    #: Whether a message may have passed another of its stream.
    was_passed: bool = False
    #: Redrives that were left to the timer.
    intent_ids: list[int] = field(default_factory=list)
    #: The ids of API keys in the order of their making.
    key_ids: list[str] = field(default_factory=list)
    #: Of the claims of durable consumers, by name and queue, as they were read last.
    members: dict[tuple[str, str], list[Delivery]] = field(default_factory=dict)
    ceiling: int | None = None

    def carry_out(self, step: Request[Any] | Called) -> Any:
        request, caller = step if isinstance(step, Called) else (step, LOCAL)
        if isinstance(request, CreateQueue) and request.options.get("max_unsettled_per_key"):
            self.compares_turns = False
        self.was_passed |= _lets_pass(request)
        try:
            answer = self.do(request) if caller is LOCAL else self.do(request, caller)
            if isinstance(request, ConsumersRead):
                answer = [delivery for page in answer for delivery in page]
        except FairleadError as refused:
            said = _ID.sub(lambda found: f"message {self.named(found[0])}", str(refused))
            for at, key_id in enumerate(self.key_ids):
                said = said.replace(key_id, f"key {at}")
            return type(refused).__name__, refused.code, _GENERATION.sub(r"generation\1", said)
        for shown in _enqueued(request, answer):
            raw_id = find_id(shown)
            assert raw_id is not None
            self.names.setdefault(raw_id, len(self.names))
        if isinstance(answer, NewKey):
            self.key_ids.append(answer.info.id)
        if isinstance(request, KeysList):
            # Keys of the same millisecond are in the order of their ids, which are random.
            answer.sort(key=lambda info: self.key_ids.index(info.id))
        if isinstance(answer, OperatorResult) and getattr(request, "dry_run", False):
            # Members of a claim with runs of streams are met in another order.
            answer = dataclasses.replace(
                answer,
                changed=tuple(sorted(answer.changed, key=self._order)),
                skipped=tuple(sorted(answer.skipped, key=lambda skip: self._order(skip[0]))),
            )
        if isinstance(answer, RedriveResult) and answer.intent_id is not None:
            self.intent_ids.append(answer.intent_id)
        if isinstance(request, Claim):
            answer = self._in_order(request, answer)
            self.deliveries += answer
        if isinstance(request, ConsumersRead):
            self.deliveries += answer[:2]
            self.members[request.name, request.queue] = answer
        if isinstance(request, StagingPublish):
            return answer, self._name_published(request.queue)
        if isinstance(request, ConsumersCeiling):
            self.ceiling = answer
            return None
        if isinstance(request, Exchange):
            for part, its_answer in zip(request.requests, answer, strict=True):
                if isinstance(part, Claim):
                    its_answer[:] = self._in_order(replace(part, token=caller.claim_token), its_answer)
                    self.deliveries += its_answer
        return self.compared(answer)

    def _said(self, text: str) -> str:
        return _LEASE.sub("its lease", _ID.sub(lambda found: f"message {self.named(found[0])}", text))

    def _name_published(self, queue: str) -> list[int]:
        """A publish tells no ids: its messages are named by their payloads, which are numbered."""
        new = []
        for view in ("messages", "dead"):
            after = ""
            while page := self._browse(queue, view, after):
                new += [info for info in page if self.named(info.id) is None]
                after = page[-1].id
        for info in sorted(new, key=lambda info: int(info.payload.rstrip(b"."))):
            self.names[find_id(info.id) or b""] = len(self.names)
        return sorted(self.names[find_id(info.id) or b""] for info in new)

    def _browse(self, queue: str, view: Any, after: str) -> list[MessageInfo]:
        with suppress(FairleadError):
            found: list[MessageInfo] = self.do(Browse(queue, view, after=after))
            return found
        return []

    def _order(self, shown: str) -> int:
        name = self.named(shown)
        return -1 if name is None else name

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

    def place(self, number: int, arrived: int) -> Caller:
        """Of a request in the session of the run."""
        # Without room it may fail, and then its requests are refused.
        with suppress(Unavailable):
            self.do(OpenSession("run"))
        return LOCAL._replace(session="run", number=number, arrived=arrived)

    def key_at(self, share: float) -> str:
        """The id of the API key at that share of all keys; beyond, one that no key has."""
        ids = [*self.key_ids, "adopted"]
        return ids[int(share * len(ids))]

    def compared(self, answer: Any) -> Any:
        match answer:
            case NewKey():
                return self.compared(answer.info)
            case KeyInfo():
                return self.key_ids.index(answer.id), dataclasses.replace(answer, id="")
            case OperatorResult():
                changed, skipped = answer.changed, answer.skipped
                named = [(self.named(one), why) for one, why in skipped]
                return [self.named(one) for one in changed], named, answer.more
            case ConsumerInfo():
                return replace(answer, generation=0)
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
            case Explanation() if not self.compares_turns:
                codes = {reason.code for reason in answer.reasons if not self._is_passed(reason)}
                return self._said(answer.subject), codes - {"behind_in_ring", "throttled"}
            case Explanation():
                compared = [reason for reason in answer.reasons if not self._is_passed(reason)]
                reasons = [_without_due(reason, self._said) for reason in compared]
                return self._said(answer.subject), answer.summary, reasons
            case FailureMetrics():
                return self._metrics(answer)
            case RedriveResult():
                return answer.matched, answer.moved, answer.intent_id is not None
            case Intent():
                asked = answer.limit, answer.rate, answer.clear_progress, answer.filter
                return answer.kind, answer.created_ms, answer.done, asked
            case MessageInfo():
                return self._info(answer)
            case tuple():
                return tuple([self.compared(part) for part in answer])
            case QueueStats():
                counts = answer.ready, answer.waiting, answer.leased, answer.dead, answer.done, answer.bytes
                throttles = [_with_round_tokens(one) for one in answer.throttles]
                keys = [key for key in answer.keys if key.pending]
                turns = keys if self.compares_turns else None
                return counts, answer.consumers, answer.paused, throttles, answer.totals, turns
        return answer

    def _is_passed(self, reason: Reason) -> bool:
        is_of_stream = reason.code.startswith(("blocked_stream", "leased_stream"))
        return self.was_passed and is_of_stream

    def _metrics(self, metrics: FailureMetrics) -> FailureMetrics:
        if self.was_passed:
            metrics = dataclasses.replace(metrics, blocked_streams=(), blocked_count=0)
        poison, blocked = metrics.poison_candidates, metrics.blocked_streams
        return dataclasses.replace(
            metrics,
            poison_candidates=tuple([dataclasses.replace(one, id=self._said(one.id)) for one in poison]),
            blocked_streams=tuple(
                [dataclasses.replace(one, blocker=self._said(one.blocker)) for one in blocked]
            ),
        )

    def _info(self, info: MessageInfo) -> dict[str, Any]:
        """Without `place`: each engine has its own numbers, also of the order in a stream."""
        shown = {one.name: getattr(info, one.name) for one in fields(info) if one.name != "place"}
        return shown | {
            "id": self.named(info.id),
            "seq": info.seq > 0 and not info.source,
            "failures": _without_leases(info.failures),
        }

    def _delivery(self, delivery: Delivery) -> tuple[Any, ...]:
        return (
            self.names[delivery.raw_id],
            delivery.payload,
            delivery.headers,
            (delivery.queue, delivery.source, delivery.fairness_key, delivery.weight, delivery.throttle_keys),
            (delivery.attempts, delivery.deliveries, int(delivery.progress), delivery.carry),
            (delivery.enqueued_at, delivery.lease_until, delivery.dead_since),
            _without_leases(delivery.failures),
        )


class Run:
    """Draws the next step from its seed and from how many deliveries there were, never from an answer that
    could differ.
    """

    def __init__(
        self,
        seed: int,
        *,
        has_scripts: bool = False,
        forgets: bool = False,
        keeps: bool = False,
        in_streams: bool = False,
        closes: bool = False,
    ) -> None:
        """`has_scripts`: queues may have hooks, for which `StandInHooks` must answer. `in_streams`: many messages are
        in streams, in every run. `closes`: many messages have throttle keys, and close them.
        """
        #: Whether queues may drop their dead letters after a time.
        self._forgets = forgets
        #: Whether queues may keep completed messages for a time.
        self._keeps = keeps
        self._random = Random(seed)
        self._has_scripts = has_scripts
        self._has_breakers = self._random.random() < 0.4
        self._keys = [f"k{n}" for n in range(self._random.choice((1, 3, 12)))]
        self._weighted = self._random.random() < 0.5
        #: How often a message has a delay, a time to live or a dedup key.
        self._special = self._random.choice((0.0, 0.1, 0.6))
        self._throttled = self._random.choice((0.0, 0.0, 0.3, 1.0))
        #: Names of streams, and how often a message has one.
        self._streams = [f"s{n}" for n in range(self._random.choice((1, 3, 30)))]
        self._in_stream = self._random.choice((0.0, 0.0, 0.4, 1.0))
        self._body = 0
        #: The requests under the ids that were given, by number.
        self._asked: list[list[Request[Any]]] = []
        self._staging = StagingSteps(self._random, self._message)
        self._closes = closes
        if closes:
            self._throttled = max(self._throttled, 0.6)
        if in_streams:
            self._in_stream = max(self._in_stream, 0.7)
        self._draws = self._random.choice((_STEPS, _STEPS | {"claim": 6}, _STEPS | {"enqueue": 8}))

    def first_steps(self) -> list[Request[Any]]:
        created = [CreateQueue(name, self._options()) for name in QUEUES]
        return [*created, UpdateQueue("second", {"quantum": self._random.choice((1, 2, 5))})]

    def next_step(self, delivered: int) -> Request[Any] | Callable[[Side], Request[Any] | Called] | int:
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
            case "keys":
                return self._key_verb()
            case "long":
                return self._long_operation()
            case "update":
                return self._update()
            case "runbooks":
                return self._runbook()
            case "exchange" if not self._has_breakers:
                return self._exchange(delivered)
            case "goodbye":
                return Goodbye(random.choice(CONSUMERS))
            case "consume":
                return consumer_step(random)
            case "stage":
                return self._staging.next_step()
            case "pause":
                return random.choice((Pause, Resume, Resume))(random.choice((*QUEUES, "unknown")))
            case "view":
                return self._view()
            case _:
                return random.choice(
                    (
                        Stats(random.choice(QUEUES), random.random() < 0.5),
                        Stats("first.dlq"),
                        ListQueues("f"),
                        Twin("first", "d1"),
                    )
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
            "poison_after": (0, 1, 2),
            "max_deliveries": (0, 0, 4),
            "quantum": (1, 1, 3),
            "max_messages": (0, 0, 25),
            "max_unsettled_per_consumer": (0, 0, 5),
            "ttl": (None, None, "45s"),
            "expired_to_dead": (False, True),
            "dedup": ("5m", "live", "2s"),
            "dead_retention": (None, None, "3s") if self._forgets else (None,),
            "ordering": ("release", "release", "strict", "none"),
            "max_unsettled_per_key": (0, 0, 0, 2),
            "retry_in_stream": (None, None, {"policy": "immediate"}),
        }.items():
            drawn[option] = random.choice(values)
        if self._keeps:
            drawn["retain_completed"] = random.choice((None, None, "2s", "1h"))
            drawn["dedup"] = random.choice((drawn["dedup"], "kept"))
        if self._has_breakers:
            drawn["failure_breaker"] = random.choice((None, {"failures": 3, "within": "10s", "pause": "4s"}))
        if self._has_scripts:
            drawn["on_enqueue"] = random.choice((None, None, None, "a script"))
            drawn["on_failure"] = random.choice((None, None, None, "a script"))
        return drawn

    def _update(self) -> Request[Any]:
        random = self._random
        queue = random.choice((*QUEUES, "first.dlq"))
        if random.random() < 0.4:
            age, which = random.choice(("0s", "3s", "1m")), random.choice(("all", "dead", "done"))
            return Prune(queue, age, which, dry_run=random.random() < 0.3)
        options = {option: value for option, value in self._options().items() if random.random() < 0.3}
        for option in ("quantum", "max_unsettled_per_key"):
            options.pop(option, None)
        if random.random() < 0.2:
            options = random.choice(({"visibility_timeout": "2s"}, {"ordering": "none"}, {"unknown": 1}))
        return UpdateQueue(queue, options)

    def _long_operation(self) -> Request[Any] | Callable[[Side], Request[Any]]:
        random = self._random
        queue = random.choice((*QUEUES, "first.dlq", "second.dlq", "unknown"))
        kind = random.choices(
            ("redrive", "purge", "drain", "intents", "cancel", "delete"), (8, 2, 1, 2, 1, 1)
        )[0]
        match kind:
            case "redrive":
                return self._redrive(queue)
            case "purge":
                return Purge(queue)
            case "drain":
                return Drain(queue, random.choice((1, 3, 100)))
            case "intents":
                return Intents()
            case "cancel":
                return lambda side: CancelIntent(side.intent_ids[-1] if side.intent_ids else 1 << 70)
            case _:
                return random.choice(
                    (DeleteQueue(queue), *[CreateQueue(name, self._options()) for name in QUEUES])
                )

    def _redrive(self, queue: str) -> Callable[[Side], Request[Any]]:
        random = self._random
        shares = [random.random() for _ in range(4)] if random.random() < 0.3 else None
        asked = {
            "filter": random.choice((None, self._filter())),
            "count": random.choice((None, None, 1, 3)),
            "dry_run": random.random() < 0.2,
            "rate": random.choice((None, None, 0.5, 2)),
            "clear_progress": random.random() < 0.3,
        }

        def request(side: Side) -> Request[Any]:
            ids = None if shares is None else [side.id_at(share) for share in shares]
            return Redrive(queue, ids, **asked)  # type: ignore[arg-type]

        return request

    def _message(self) -> NewMessage:
        random = self._random
        self._body += 1
        weight = random.choice((1, 1, 2, 5)) if self._weighted else 1
        headers = {"n": str(self._body)} if random.random() < 0.2 else None
        payload = b"%d" % self._body + b"." * random.choice((0, 0, 900, 9_000))
        message = NewMessage(payload, headers, random.choice(self._keys), weight)
        if random.random() < self._throttled:
            message = replace(message, throttle_keys=random.choice((["t1"], ["t2"], ["t2", "t1"], ["t3"])))
        if random.random() < self._in_stream:
            message = replace(message, stream=random.choice(self._streams))
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
            max_per_stream=random.choice((1, 1, 3, 20)),
        )

    def _configuration(self) -> Request[Any]:
        random = self._random
        if self._closes and random.random() < 0.4:
            key = random.choice(("t1", "t2", "t3"))
            bounds = (
                ConfigSet(f"throttle:{key}:max_returns", "2"),
                ConfigSet(f"throttle:{key}:max_closed", "1s"),
            )
            return random.choice((CloseThrottle(key, "2s"), OpenThrottle(key), Throttles(), *bounds))
        key = random.choice(("throttle:t1:rate", "throttle:t2:rate", "throttle:t1:burst", "throttle.t2"))
        if random.random() < 0.3:
            key = f"weight:first:{random.choice(self._keys)}"
        if random.random() < 0.25:
            return ConfigDelete(key)
        if random.random() < 0.1:
            return random.choice((ConfigGet(key), ConfigList("thr")))
        return ConfigSet(key, "2,3" if key == "throttle.t2" else random.choice(("1", "5", "0.4", "20")))

    def _exchange(self, delivered: int) -> Callable[[Side], Called]:
        """A new request, with a number or without one; or an earlier number again, most often with its request."""
        random = self._random
        requests = self._parts(delivered)
        number, arrived = len(self._asked), 0
        if self._asked and random.random() < 0.3:
            number = random.randrange(len(self._asked))
            requests = self._asked[number] if random.random() < 0.8 else requests
        else:
            self._asked.append(requests)
            arrived = number + 1 - random.randint(1, 3) if random.random() < 0.2 and number > 3 else 0
        is_numbered = random.random() < 0.8
        single = len(requests) == 1 and isinstance(requests[0], (Enqueue, EnqueueMany, Settle))

        def call(side: Side) -> Called:
            parts = [for_side(request, side) for request in requests]
            request = parts[0] if single and is_numbered else Exchange(parts)
            return Called(request, side.place(number + 1, arrived) if is_numbered else LOCAL)

        return call

    def _parts(self, delivered: int) -> list[Request[Any]]:
        random = self._random
        parts: list[Request[Any]] = []
        for _ in range(random.choice((0, 1, 1))):
            parts.append(
                Settle([self._item(random.randrange(delivered)) for _ in range(4)] if delivered else [])
            )
        for _ in range(random.choice((0, 1, 2))):
            messages = [replace(self._message(), dedup_key=None) for _ in range(random.choice((1, 3)))]
            parts.append(EnqueueMany(random.choice((*QUEUES, *QUEUES, "second.dlq", "unknown")), messages))
        if random.random() < 0.5:
            limit = random.choice((1, 3, 0)) if random.random() < 0.2 else 4
            parts.append(Claim(random.choice(QUEUES), limit, consumer=random.choice(CONSUMERS)))
        random.shuffle(parts)
        return parts

    def _runbook(self) -> Request[Any]:
        random = self._random
        project = random.choice(("", "shop", "no project!"))
        match random.randrange(5):
            case 0:
                return RunbooksGet(project)
            case 1:
                return RunbooksList()
            case 2:
                queue = random.choice(("tickets", "shop/tickets", "first", "a bad name"))
                return random.choice((Stats(queue), Enqueue(queue, b"x"), Pause(queue)))
            case _:
                return RunbooksSave(project, random.choice(RUNBOOKS))

    def _key_verb(self) -> Request[Any] | Callable[[Side], Request[Any]]:
        random = self._random
        share, grants = random.random(), random.sample(GRANTS, random.randint(0, 2))
        lasts = random.choice((None, None, "5s", "1h", "0s"))
        match random.randrange(8):
            case 0 | 1:
                return KeysCreate(random.choice(("ann", "bob", "")), grants, expires_in=lasts)
            case 2:
                return lambda side: KeysSetGrants(side.key_at(share), grants)
            case 3:
                return lambda side: KeysChangeGrants(side.key_at(share), add=grants, remove=grants[:1])
            case 4:
                return lambda side: KeysRevoke(side.key_at(share))
            case 5:
                return lambda side: KeysRotate(side.key_at(share), keep=lasts)
            case 6:
                return lambda side: KeysShow(side.key_at(share))
            case _:
                return KeysList()

    def _operation(self, delivered: int) -> Callable[[Side], Request[Any]]:
        """By ids of messages that were delivered or enqueued, or never existed."""
        random = self._random
        if random.random() < 0.1:
            released = ReleaseStream(random.choice(QUEUES), random.choice(self._streams))
            return lambda side: released
        kind, dry_run = random.choice(OPERATIONS), random.random() < 0.2
        chosen = [random.random() for _ in range(random.choice((1, 1, 3)))]
        queue = random.choice((*QUEUES, "first.dlq"))
        if kind not in (Ack, Nack) and random.random() < 0.3:
            return partial(_by_filter, kind, queue, self._filter(), dry_run or self._in_stream > 0)
        if kind in (Ack, Nack):
            return lambda side: kind(queue, side.id_at(chosen[0]))
        return lambda side: kind(queue, [side.id_at(share) for share in chosen], dry_run=dry_run)

    def _filter(self) -> DeadFilter:
        random = self._random
        return random.choice(
            (
                DeadFilter(),
                DeadFilter(key=random.choice(self._keys)),
                DeadFilter(reason="dependency_failure"),
                DeadFilter(error="no", max_attempts=2),
                DeadFilter(error_regex="^(no|fail)"),
                DeadFilter(min_attempts=1),
                DeadFilter(header=("n", "1")),
                DeadFilter(older_than="3s"),
                DeadFilter(newer_than="3s"),
                DeadFilter(key=""),
                DeadFilter(error_regex="("),
            )
        )

    def _view(self) -> Callable[[Side], Request[Any]]:
        random = self._random
        queue, limit = random.choice((*QUEUES, "first.dlq")), random.choice((1, 4, 1000))
        shares = [random.random() for _ in range(3)]
        where, key = (
            random.choice(("ready", "waiting", "leased")),
            random.choice((None, None, *self._keys[:2])),
        )
        view, count = random.choice(("messages", "dead")), random.choice((1, 2, 7))
        goes_on, stream = random.random() < 0.4, random.choice(self._streams)
        makes: tuple[Callable[[Side], Request[Any]], ...] = (
            lambda side: Peek(queue, limit, where, key, side.id_at(shares[0]) if goes_on else None),
            lambda side: Find(side.id_at(shares[0])),
            lambda side: Find(f"stream:{stream}", queue),
            lambda side: Browse(queue, view, limit=limit, after=side.id_at(shares[0]) if goes_on else ""),
            lambda side: Browse(queue, view, low=side.id_at(shares[0]), high=side.id_at(shares[1])),
            lambda side: BrowseSplits(queue, view, count),
            lambda side: Explain(side.id_at(shares[0])),
            lambda side: ExplainQueue(queue),
            lambda side: GetFailureMetrics(queue),
        )
        return random.choice(makes)

    def _item(self, at: int) -> Callable[[Side], Any]:
        random = self._random
        if self._closes and random.random() < 0.2:
            key, retry_after = (
                random.choice(("t1", "t1", "t2", "t3")),
                random.choice(("20ms", "900ms", "30s")),
            )
            return lambda side: Fail(side.deliveries[at], "429", retry_after=retry_after, close=key)
        duration = random.choice((None, "200ms", "1m", "1ms"))
        make = random.choice(
            (
                Complete,
                Complete,
                lambda one: Fail(one, error="no", reason="dependency_failure", progress=4),
                lambda one: Fail(one, retry_in="700ms"),
                lambda one: Fail(one, dead=True),
                Release,
                lambda one: Release(one, keep_order=False),
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
    "keys": 1,
    "update": 1,
    "runbooks": 0.5,
    "consume": 5,
    "exchange": 3,
    "stage": 3,
    "long": 1,
    "goodbye": 1,
    "pause": 1,
    "look": 1,
    "view": 4,
}


def _by_filter(
    kind: Callable[..., Request[Any]], queue: str, selected: DeadFilter, dry_run: bool, side: Side
) -> Request[Any]:
    return kind(queue, filter=selected, dry_run=dry_run)


def _lets_pass(request: Request[Any]) -> bool:
    if isinstance(request, Exchange):
        return any(_lets_pass(part) for part in request.requests)
    if isinstance(request, Settle):
        return any(isinstance(item, Release) and not item.keep_order for item in request.items)
    return isinstance(request, ReleaseStream)


def _without_due(reason: Reason, said: Callable[[str], str]) -> Reason:
    if reason.code == "next_due":
        return Reason(reason.code, "")
    return dataclasses.replace(reason, text=said(reason.text))


def _with_round_tokens(throttle: ThrottleStats) -> ThrottleStats:
    """The same tokens may be added up in other parts."""
    return dataclasses.replace(throttle, tokens=round(throttle.tokens, 6))


def _without_leases(failures: Sequence[FailureRecord]) -> list[FailureRecord]:
    return [replace(failure, error=_LEASE.sub("its lease", failure.error)) for failure in failures]


def _enqueued(request: Request[Any], answer: Any) -> list[str]:
    """The ids of the messages that the request enqueued, duplicates included."""
    if isinstance(request, Enqueue):
        return [answer]
    if isinstance(request, (EnqueueMany, Quarantine)):
        return list(answer)
    if isinstance(request, Exchange):
        return [one for part in zip(request.requests, answer, strict=True) for one in _enqueued(*part)]
    return []


def for_side(
    step: Request[Any] | Callable[[Side], Request[Any] | Called], side: Side
) -> Request[Any] | Called:
    """Messages and deliveries have other ids on each side."""
    if not isinstance(step, Request):
        return step(side)
    if isinstance(step, Settle):
        return Settle([item(side) for item in step.items])
    return step
