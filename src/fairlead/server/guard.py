"""A broker as one caller may see it: the same verbs, each after a check of rights, and what operators do
written down.

The check comes before any look-up and depends on the key and the name alone, so a refusal does not tell
whether a queue exists. What is asked for by message id is answered, where it is not the caller's, as if there
were no such message. There is no way around the tables below: a verb that is in none of them does not exist
here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from fairlead.broker.broker import Broker
from fairlead.clock import Clock
from fairlead.decide.access import allows, rights_on
from fairlead.decide.redact import Redaction
from fairlead.errors import FairleadError, Forbidden, InvalidRequest, RequestExpired
from fairlead.model.access import EVERY_RIGHT, EVERYTHING, Grant, Right
from fairlead.model.delivery import Delivery
from fairlead.model.facts import Intent
from fairlead.model.handles import read_handle
from fairlead.model.ids import find_id, show_id
from fairlead.model.message import NewMessage
from fairlead.model.names import check_queue_name
from fairlead.model.settle import Extend, LeaseRef, Release, Settlement, SettleResult
from fairlead.model.views import ExchangeResult, Explanation, MessageInfo, QueueInfo, QueueStats
from fairlead.server.audit_details import Entry, count_of, details_of
from fairlead.server.guarded_consumers import GuardedConsumers
from fairlead.server.guarded_groups import GuardedAudit, GuardedConfig, GuardedKeys, GuardedRunbooks
from fairlead.server.guarded_staging import GuardedStaging
from fairlead.server.hidden import hide, without_header
from fairlead.server.scopes import scoped, scoped_id, scoped_ids

#: Verbs whose first argument is a queue, and what they need there. All are written down, except for dry runs
#: by id.
ACTS: dict[str, Right] = {
    "create_queue": Right.ADMIN,
    "update_queue": Right.ADMIN,
    "pause": Right.ADMIN,
    "resume": Right.ADMIN,
    "purge": Right.ADMIN,
    "delete_queue": Right.ADMIN,
    "drop": Right.ADMIN,
    "done": Right.ADMIN,
    "bury": Right.ADMIN,
    "hold": Right.ADMIN,
    "unhold": Right.ADMIN,
    "fail": Right.ADMIN,
    "prune": Right.ADMIN,
    "release_stream": Right.ADMIN,
    "retry": Right.REDRIVE,
    "redrive": Right.REDRIVE,
    "quarantine": Right.QUARANTINE,
}
#: Verbs of daily work on a queue, which nobody writes down.
WORK: dict[str, Right] = {
    "enqueue": Right.PRODUCE,
    "enqueue_many": Right.PRODUCE,
    "twin": Right.PRODUCE,
    "ack": Right.CONSUME,
    "nack": Right.CONSUME,
}
#: Looking at a queue takes any right on it; what was sent is hidden without `read-payload`.
LOOKS = ("failure_metrics", "explain_queue", "browse_splits")

#: Stands in a settle for what is not the caller's: no message has it.
_NOBODY = bytes(16)


class Caller(NamedTuple):
    """Who calls. Without a `key_id` every right is theirs: keys are off, or they hold the data directory
    itself.
    """

    key_id: str | None
    name: str
    source: str

    @property
    def who(self) -> str:
        return self.key_id or self.name


class GuardedBroker:
    def __init__(self, broker: Broker, caller: Caller, redaction: Redaction | None = None) -> None:
        self._broker = broker
        self.caller = caller
        self._redaction = redaction

    if TYPE_CHECKING:

        def __getattr__(self, verb: str) -> Any:
            """The verbs of the tables, which types do not see."""

    @property
    def clock(self) -> Clock:
        return self._broker.clock

    def now_ms(self) -> int:
        return self._broker.now_ms()

    # Groups, made when they are asked for: a door makes a guard for every call

    @property
    def config(self) -> GuardedConfig:
        return GuardedConfig(self, self._broker)

    @property
    def keys(self) -> GuardedKeys:
        return GuardedKeys(self, self._broker)

    @property
    def audit(self) -> GuardedAudit:
        return GuardedAudit(self, self._broker)

    @property
    def runbooks(self) -> GuardedRunbooks:
        return GuardedRunbooks(self, self._broker)

    @property
    def consumers(self) -> GuardedConsumers:
        return GuardedConsumers(self, self._broker)

    @property
    def staging(self) -> GuardedStaging:
        return GuardedStaging(self, self._broker)

    # Rights

    def grants(self) -> Sequence[Grant]:
        """As they are now: `Unauthenticated` when the key was revoked or is over."""
        return (
            EVERY_RIGHT
            if self.caller.key_id is None
            else self._broker.keys.current(self.caller.key_id).grants
        )

    def may(self, right: Right, queue: str) -> bool:
        return self.caller.key_id is None or allows(self.grants(), right, queue)

    def sees(self, queue: str) -> bool:
        return bool(rights_on(self.grants(), queue))

    def need(self, right: Right, queue: object) -> None:
        if not self.may(right, check_queue_name(queue)):
            raise Forbidden(right, str(queue))

    def need_everywhere(self, right: Right | None = None) -> None:
        """That right on all queues there are or may be; None: any right."""
        if not any(grant.pattern == EVERYTHING and right in (None, grant.right) for grant in self.grants()):
            raise Forbidden(right or "some right", EVERYTHING)

    def need_some(self, queue: object) -> None:
        if not self.sees(check_queue_name(queue)):
            raise Forbidden("some right", str(queue))

    @contextmanager
    def writes_down(self, verb: str, queue: str = "", /, **details: object) -> Iterator[Entry]:
        """Before the act, and what came of it after."""
        audit, entry = self._broker.audit, Entry()
        record = audit.begin(self.caller.who, self.caller.name, self.caller.source, verb, queue, details)
        try:
            yield entry
        except BaseException as error:
            with suppress(FairleadError):
                audit.finish(record, error.code if isinstance(error, FairleadError) else "failed")
            raise
        audit.finish(record, "done", entry.count, entry.details)

    # Messages out

    def claim(
        self,
        queue: str | Sequence[str],
        *,
        wait: Any = None,
        consumer: str = "",
        token: str | None = None,
        **options: Any,
    ) -> list[Delivery]:
        key_id = self.caller.key_id
        if key_id is None:
            return self._broker.claim(queue, wait=wait, consumer=consumer, token=token, **options)
        self._need_all(Right.CONSUME, queue)
        deliveries = self._broker.claim(
            queue,
            wait=wait,
            consumer=scoped(key_id, consumer),
            token=token and scoped(key_id, token),
            **options,
        )
        if wait is not None and deliveries:
            self._check_again(queue, deliveries)
        return self._still_own(deliveries)

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """What was claimed here and could not be handed over; the key may be over by now."""
        self._broker.settle([Release(delivery, keep_order=True) for delivery in deliveries])

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        if self._consumes_everything():
            return self._broker.settle(items)
        return _named(items, self._broker.settle(self._own(items)))

    def goodbye(self, consumer: str) -> int:
        self.grants()
        return self._broker.goodbye(scoped(self.caller.key_id, consumer))

    def exchange(
        self,
        consumer: str,
        *,
        extend: Sequence[Extend] = (),
        settle: Sequence[Settlement] = (),
        enqueue: Mapping[str, Sequence[NewMessage]] | None = None,
        claim: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        answered: Sequence[str] = (),
    ) -> ExchangeResult:
        if self.caller.key_id is None:
            return self._broker.exchange(
                consumer,
                extend=extend,
                settle=settle,
                enqueue=enqueue,
                claim=claim,
                request_id=request_id,
                answered=answered,
            )
        for queue in enqueue or {}:
            self.need(Right.PRODUCE, queue)
        if claim is not None:
            self._need_all(Right.CONSUME, claim.get("queue", ()) if isinstance(claim, Mapping) else ())
        try:
            done = self._broker.exchange(
                scoped(self.caller.key_id, consumer),
                extend=self._own(extend),  # type: ignore[arg-type]
                settle=self._own(settle),
                enqueue=enqueue,
                claim=claim,
                request_id=request_id and scoped_id(self.caller.key_id, request_id),
                answered=scoped_ids(self.caller.key_id, answered),
            )
        except RequestExpired as expired:
            raise RequestExpired(str(request_id), expired.age_ms) from None
        return replace(
            done,
            settled=tuple(_named([*extend, *settle], done.settled)),
            deliveries=self._still_own(done.deliveries),
        )

    # What operators do

    def drain(self, queue: str, *, limit: int = 10_000) -> list[MessageInfo]:
        """It gives the messages themselves, so nothing of them is hidden."""
        self.need(Right.ADMIN, queue)
        self.need(Right.READ_PAYLOAD, queue)
        with self.writes_down("drain", queue, limit=limit) as entry:
            drained = self._broker.drain(queue, limit=limit)
            entry.count = len(drained)
        return drained

    def checkpoint(self, path: str | Path) -> None:
        self.need_everywhere(Right.ADMIN)
        with self.writes_down("checkpoint", path=path):
            self._broker.checkpoint(path)

    def intents(self) -> list[Intent]:
        intents, everything = self._broker.intents(), self._sees_everything()
        names = self._broker.queue_names([intent.queue_id for intent in intents])
        return [
            intent if self.may(Right.READ_PAYLOAD, name or EVERYTHING) else without_header(intent)
            for intent, name in zip(intents, names, strict=True)
            if everything or (name and self.sees(name))
        ]

    def cancel_intent(self, intent_id: int) -> bool:
        intent = next((intent for intent in self.intents() if intent.intent_id == intent_id), None)
        if intent is None:
            return False
        queue = self._broker.queue_names([intent.queue_id])[0] or EVERYTHING
        if not self.may(Right.REDRIVE, queue):
            raise Forbidden(Right.REDRIVE, queue)
        with self.writes_down("cancel_intent", queue, intent=intent_id):
            return self._broker.cancel_intent(intent_id)

    # Looking

    def queues(self, prefix: str = "") -> list[QueueInfo]:
        self.grants()
        return [queue for queue in self._broker.queues(prefix) if self.sees(queue.name)]

    def stats(self, queue: str, *, keys: bool = False, key_limit: int = 1000) -> QueueStats:
        """Throttle keys belong to all queues, so they are shown to those who may see all."""
        self.need_some(queue)
        stats = self._broker.stats(queue, keys=keys, key_limit=key_limit)
        return stats if self._sees_everything() else replace(stats, throttles=())

    def find(self, message_id: str, queue: str | None = None) -> MessageInfo:
        return self._shown("find", [self._broker.find(self._visible_id(message_id, queue), queue)])[0]

    def explain(self, message_id: str, queue: str | None = None) -> Explanation:
        """It may quote the last error of a message, which may quote the message."""
        message_id = self._visible_id(message_id, queue)
        told = self._broker.explain(message_id, queue)
        if self._redaction is None or not any(reason.code == "last_error" for reason in told.reasons):
            return told
        info = self._broker.find(message_id, queue)
        return replace(
            told,
            reasons=tuple(
                replace(reason, text=self._redaction.text(info, reason.text)) for reason in told.reasons
            ),
        )

    def peek(
        self,
        queue: str,
        *,
        limit: int = 10,
        where: str = "ready",
        key: str | None = None,
        after: str | None = None,
    ) -> list[MessageInfo]:
        self.need_some(queue)
        if after is not None and (raw_id := find_id(after)) is not None and not self._sees_everything():
            name = self._broker.queues_of([raw_id])[0]
            if name is None or not self.sees(name):
                after = show_id(_NOBODY)
        return self._shown("peek", self._broker.peek(queue, limit=limit, where=where, key=key, after=after))

    def browse(
        self,
        queue: str,
        *,
        view: Literal["messages", "dead"] = "messages",
        low: str = "",
        high: str = "",
        limit: int = 1000,
        after: str = "",
    ) -> list[MessageInfo]:
        self.need_some(queue)
        return self._shown(
            "browse", self._broker.browse(queue, view=view, low=low, high=high, limit=limit, after=after)
        )

    def answering(self) -> AbstractContextManager[None]:
        """See `Broker.answering`."""
        return self._broker.answering()

    def browse_pages(
        self, queue: str, view: Any, low: Any, high: Any, after: Any
    ) -> Iterator[list[MessageInfo]]:
        """All pages from there on; that they were read is written down once, with the first."""
        told = False
        while True:
            self.need_some(queue)
            infos = self._broker.browse(queue, view=view, low=low, high=high, limit=10_000, after=after)
            if not infos:
                return
            yield self._visible(infos) if told else self._shown("browse", infos)
            told, after = True, infos[-1].id

    # How it is done

    def _need_all(self, right: Right, queues: object) -> None:
        for queue in (queues,) if isinstance(queues, str) else queues if isinstance(queues, Sequence) else ():
            self.need(right, queue)

    def _check_again(self, queue: str | Sequence[str], deliveries: list[Delivery]) -> None:
        """The key may have been revoked while the claim waited."""
        try:
            self._need_all(Right.CONSUME, queue)
        except FairleadError:
            self.put_back(deliveries)
            raise

    def _still_own(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """What a token or request brings again may be of a queue that it was asked for when the caller had
        the right to.
        """
        try:
            lost = {
                queue
                for queue in {delivery.queue for delivery in deliveries}
                if not self.may(Right.CONSUME, queue)
            }
        except FairleadError:
            # The key ended in this moment.
            self.put_back(deliveries)
            raise
        if lost:
            self.put_back([delivery for delivery in deliveries if delivery.queue in lost])
        return [delivery for delivery in deliveries if delivery.queue not in lost]

    def _sees_everything(self) -> bool:
        return any(grant.pattern == EVERYTHING for grant in self.grants())

    def _consumes_everything(self) -> bool:
        return any(grant.pattern == EVERYTHING and grant.right is Right.CONSUME for grant in self.grants())

    def _own(self, items: Sequence[Settlement]) -> list[Settlement]:
        """What is not in a queue of the caller's is put as if it named no message at all."""
        if self._consumes_everything() or not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
            return items  # type: ignore[return-value]  # what is no list is for the engine to refuse
        ids = [_id_of(item) for item in items]
        places = iter(self._broker.queues_of([raw_id for raw_id in ids if raw_id is not None]))
        names = [next(places) if raw_id is not None else None for raw_id in ids]
        may = {name: self.may(Right.CONSUME, name) for name in {name for name in names if name is not None}}
        return [
            item
            if name is None or may[name]
            else msgspec.structs.replace(item, delivery=LeaseRef(_NOBODY, -1))
            for item, name in zip(items, names, strict=True)
        ]

    def _visible_id(self, message_id: str, queue: str | None) -> str:
        if queue is not None:
            self.need_some(queue)
        return message_id if self._sees_everything() else self._broker.full_id(message_id, queue, self.sees)

    def _shown(self, verb: str, infos: list[MessageInfo]) -> list[MessageInfo]:
        """What `_visible` leaves; what the caller does read of it is written down."""
        readable = self._readable(infos)
        read = [info for info in infos if readable[info.queue]]
        if read:
            with self.writes_down(verb, read[0].queue, first=read[0].id) as entry:
                entry.count = len(read)
        return self._visible(infos)

    def _visible(self, infos: list[MessageInfo]) -> list[MessageInfo]:
        """Without what the caller may not read, or nobody may."""
        readable = self._readable(infos)
        # Error texts are seen by all who may look, so that what is redacted is struck from them before
        # anything is hidden.
        shown = infos if self._redaction is None else self._redaction.shown(infos)
        return [info if readable[info.queue] else hide(info) for info in shown]

    def _readable(self, infos: list[MessageInfo]) -> dict[str, bool]:
        return {queue: self.may(Right.READ_PAYLOAD, queue) for queue in {info.queue for info in infos}}


def _guarded(
    verb: str, check: Callable[[GuardedBroker, Mapping[str, Any], Any], None], *, written: bool = False
) -> Callable[..., Any]:
    """The verb of a broker after a check of the queue that is its first argument.

    An act is written down, and so is a dry run by filter: it reads as many messages, and its answer tells
    about error texts.
    """
    inner = getattr(Broker, verb)
    _, queue_argument, *others = inspect.signature(inner).parameters

    @functools.wraps(inner)
    def call(self: GuardedBroker, /, *args: Any, **named: Any) -> Any:
        arguments = dict(zip((queue_argument, *others), args, strict=False)) | named
        queue = arguments.get(queue_argument)
        check(self, arguments, queue)
        perform = getattr(self._broker, verb)
        dry_run = arguments.get("dry_run") is True
        if not written or (dry_run and arguments.get("ids") is not None):
            return perform(*args, **named)
        with self.writes_down(verb, str(queue), **details_of(arguments, queue_argument)) as entry:
            result = perform(*args, **named)
            entry.count = count_of(result, dry_run=dry_run)
        return result

    return call


def _needs(right: Right) -> Callable[[GuardedBroker, Mapping[str, Any], Any], None]:
    def check(guard: GuardedBroker, arguments: Mapping[str, Any], queue: Any) -> None:
        guard.need(right, queue)
        if getattr(arguments.get("filter"), "header", None) is not None:
            # Or one could guess what headers hold, value by value.
            guard.need(Right.READ_PAYLOAD, queue)

    return check


for _verb, _right in ACTS.items():
    setattr(GuardedBroker, _verb, _guarded(_verb, _needs(_right), written=True))
for _verb, _right in WORK.items():
    setattr(GuardedBroker, _verb, _guarded(_verb, _needs(_right)))
for _verb in LOOKS:
    setattr(GuardedBroker, _verb, _guarded(_verb, lambda guard, _, queue: guard.need_some(queue)))


def _id_of(item: object) -> bytes | None:
    try:
        return read_handle(getattr(item, "delivery", None))[0]
    except InvalidRequest:
        return None


def _named(items: Sequence[Settlement], results: Sequence[SettleResult]) -> list[SettleResult]:
    """Each result with the id that was asked about."""
    return [
        result
        if result.raw_id != _NOBODY
        else msgspec.structs.replace(result, raw_id=_id_of(item) or _NOBODY)
        for item, result in zip(items, results, strict=False)
    ]
