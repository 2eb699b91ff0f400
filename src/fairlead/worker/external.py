"""An external queue as a worker sees it: its `list` says what there is, and an item is taken with `take`
before it is worked.

What is listed goes into a queue of the engine, `<queue>.taken`, under its identity, and from there to a
worker like any other message. So it is the engine that hands each item to one worker at a time, however many
processes poll, and that gives it to another when its worker dies. docs/decisions/0012-external-queues.md says
why this keeps an item from being taken twice.

A worker gives its requests to `ExternalSource.do` as it would to a broker.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from fairlead.errors import FairleadError, Forbidden, QueueExists
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason, Progress
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.model.message import NewMessage
from fairlead.model.names import TAKEN_SUFFIX, taken_name
from fairlead.model.settle import Complete, Extend, Fail
from fairlead.request import Answer, Request
from fairlead.runbook.items import canonical, content_key
from fairlead.runbook.model import QueueSpec
from fairlead.runbook.placeholders import fill
from fairlead.runbook.taken import TAKEN_OPTIONS
from fairlead.surface import Surface
from fairlead.verbs.claim import Claim
from fairlead.worker.command import as_text
from fairlead.worker.job import Job
from fairlead.worker.running import Ran, run

_log = logging.getLogger("fairlead.worker")

#: How long a `list` or a `take` may run, what it may print, and how many items are looked at in one list.
COMMAND_LIMIT_S = 60.0
MAX_LISTED_BYTES = 16 * 1024 * 1024
MAX_ITEMS = 10_000
#: A list that is older than this when it would be used is not: it may name what was worked since.
STALE_S = 2 * COMMAND_LIMIT_S

#: The engine is told before `take` runs, and when it has: whoever gets the item next knows whether it is
#: ours.
TAKING, TAKEN = int(Progress.STORED), int(Progress.EVENT_STORED)

_CHUNK = 500
_MAX_KEY_BYTES = 400


class ExternalSource(Surface):
    """`name` is the external queue as the engine would know it, `base` where its commands run. `queue` is
    what to claim from.
    """

    def __init__(
        self,
        target: Surface,
        spec: QueueSpec,
        name: str,
        *,
        base: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = taken_name(name)
        self._target = target
        self._spec = spec
        self._name = name
        self._base = base
        self._now = now
        self._ready = False
        self._polled_at = 0.0
        self._polling: threading.Thread | None = None
        #: Taken, and the broker could not be told so yet: only this worker knows.
        self._unmarked: Delivery | None = None

    def do(self, request: Request[Answer]) -> Answer:
        """A claim gets items that have been taken; every other request goes to the broker."""
        if isinstance(request, Claim):
            return cast(Answer, self._claim(request))
        return self._target.do(request)

    def _claim(self, request: Claim) -> list[Delivery]:
        """One item that has been taken, or none. Polls first when it is time to; only the first poll is
        waited for.
        """
        if not self._ready:
            self.open()
            self.offer(self.poll())
            self._ready = True
        elif request.wait is not None:
            self._poll_when_due()
        unmarked = self._unmarked
        if unmarked is not None and self._mark_taken(unmarked):
            return [unmarked]
        while True:
            # One at a time: nothing keeps a lease alive while the item before it is being taken.
            wait = self._until_next(request.wait)
            deliveries = self._target.claim(
                self.queue, limit=1, wait=wait, consumer=request.consumer, started=False
            )
            if not deliveries:
                return []
            if self.take(deliveries[0]):
                return deliveries

    def open(self) -> None:
        """The engine's queue for what is taken, which an apply has made, unless the runbook is only in files."""
        if any(info.name == self.queue for info in self._target.queues(self.queue)):
            return
        try:
            self._target.create_queue(self.queue, **TAKEN_OPTIONS)
        except QueueExists:
            return  # another worker was quicker
        except Forbidden as refused:
            refused.add_note(
                f"queue {self.queue!r} is made by: fairlead apply; then a worker needs no more than consume and produce on it"
            )
            raise

    def poll(self) -> list[object]:
        """What `list` says there is now. A list that fails is an empty one, and a warning."""
        assert self._spec.list is not None
        self._polled_at = began = self._now()
        ran = run(self._spec.list, b"", base=self._base, limit_s=COMMAND_LIMIT_S, max_bytes=MAX_LISTED_BYTES)
        if ran.trouble:
            return self._warn("list failed", ran)
        try:
            found = json.loads(ran.stdout)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list):
            return self._warn("list did not print a JSON array", ran)
        if self._now() - began > STALE_S:
            return self._warn("list took so long that what it says is no longer true", ran)
        if len(found) > MAX_ITEMS:
            self._warn(f"list has {len(found)} items, of which the first {MAX_ITEMS} are looked at", ran)
        return found[:MAX_ITEMS]

    def offer(self, items: Sequence[object]) -> None:
        """Into the engine's queue, each once: an item that is there already, or was completed a moment ago,
        stays what it is.
        """
        messages = list(self._messages(items))
        for start in range(0, len(messages), _CHUNK):
            self._target.enqueue_many(self.queue, messages[start : start + _CHUNK])

    def take(self, delivery: Delivery) -> bool:
        """True when the item is ours to work. One that `take` does not give us is let go, and may be listed
        again.
        """
        if delivery.progress & TAKEN:
            return True
        in_doubt = bool(delivery.progress & TAKING)
        if not in_doubt and not self._mark(delivery, TAKING):
            return False
        trouble = self._run_take(delivery)
        if not trouble:
            return self._mark_taken(delivery)
        if in_doubt:
            # An earlier worker may have taken it and died before it could say so. Somebody has to look.
            text = f"a worker died while it took this item, and it cannot be taken again: {trouble}"
            self._target.settle([Fail(delivery, text, FailureReason.DEPENDENCY_FAILURE, dead=True)])
        else:
            _log.warning(
                "an item was not taken",
                extra={"fields": {"queue": self._name, "id": delivery.id, "why": trouble}},
            )
            self._let_go(delivery)
        return False

    # Details

    def _poll_when_due(self) -> None:
        due = self._spec.poll_ms is not None and self._now() - self._polled_at >= self._spec.poll_ms / 1000
        if due and (self._polling is None or not self._polling.is_alive()):
            self._polling = threading.Thread(target=self._poll_aside, name="fairlead-poll", daemon=True)
            self._polling.start()

    def _poll_aside(self) -> None:
        try:
            self.offer(self.poll())
        except FairleadError as error:
            _log.warning(
                "what was listed could not be handed in",
                extra={"fields": {"queue": self._name, "error": error.code}},
            )
        except Exception:
            _log.exception("a poll failed in a way it should not", extra={"fields": {"queue": self._name}})

    def _until_next(self, wait: Any) -> Any:
        """No longer than until the next poll; one that is under way wakes us by what it hands in."""
        if (
            wait is None
            or self._spec.poll_ms is None
            or (self._polling is not None and self._polling.is_alive())
        ):
            return wait
        left_ms = self._spec.poll_ms - (self._now() - self._polled_at) * 1000
        return f"{max(10, min(to_ms(wait, 'wait'), round(left_ms)))}ms"

    def _messages(self, items: Sequence[object]) -> Iterator[NewMessage]:
        for item in items:
            try:
                payload = canonical(item)
            except ValueError as wrong:
                _log.warning(
                    "an item of the list is no item",
                    extra={"fields": {"queue": self._name, "why": str(wrong)}},
                )
                continue
            if len(payload) > MAX_PAYLOAD_BYTES:
                _log.warning(
                    "an item of the list is too large",
                    extra={"fields": {"queue": self._name, "bytes": len(payload)}},
                )
                continue
            yield NewMessage(payload, dedup_key=identity(item, payload))

    def _run_take(self, delivery: Delivery) -> str:
        """Why it was not taken; "" when it was."""
        assert self._spec.take is not None
        item = json.loads(delivery.payload)
        fields = {name: as_text(field) for name, field in item.items()} if isinstance(item, dict) else {}
        try:
            arguments = [fill(argument, fields) for argument in self._spec.take]
        except KeyError as missing:
            return f"the item has no field {missing.args[0]!r}, and the command does"
        return run(
            arguments,
            delivery.payload,
            base=self._base,
            limit_s=COMMAND_LIMIT_S,
            max_bytes=MAX_LISTED_BYTES,
        ).trouble

    def _mark(self, delivery: Delivery, progress: int) -> bool:
        """Durable before the next thing happens. False: somebody else has it by now."""
        (result,) = self._target.settle([Extend(delivery, progress=progress)])
        return result.ok

    def _mark_taken(self, delivery: Delivery) -> bool:
        """Whoever cannot be told now is told first thing at the next claim: it cannot be taken a second time."""
        self._unmarked = delivery
        marked = self._mark(delivery, TAKEN)
        self._unmarked = None
        return marked

    def _let_go(self, delivery: Delivery) -> None:
        """As if it had never been listed. Who may not drop completes it: then it is left alone for a few
        minutes.
        """
        try:
            self._target.drop(self.queue, [delivery.id])
        except Forbidden:
            self._target.settle([Complete(delivery)])

    def _warn(self, what: str, ran: Ran) -> list[object]:
        _log.warning(
            what, extra={"fields": {"queue": self._name, "why": ran.trouble, "stderr": ran.stderr[:500]}}
        )
        return []


def source_of(target: Surface, job: Job) -> ExternalSource:
    """What a worker of an external queue claims from. `target` is a `Broker` or a `Client`."""
    assert job.external is not None
    return ExternalSource(target, job.external, job.queue.removesuffix(TAKEN_SUFFIX), base=job.base)


def identity(item: object, payload: bytes) -> str:
    """By `id`, then by `number`, then by content. The number 7 and the text "7" are two items."""
    if isinstance(item, dict):
        for field in ("id", "number"):
            value = item.get(field)
            if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
                key = f"{field}:{json.dumps(value, ensure_ascii=False)}"
                return key if len(key.encode()) <= _MAX_KEY_BYTES else f"{field}:{content_key(key.encode())}"
    return content_key(payload)
