"""An external queue as a worker sees it: `list` prints its items, and `take` takes an item before it is
worked.

Listed items are enqueued in a queue of the broker, `<queue>.taken`, under their identity, and a worker claims
them from there like any other message. So the broker gives each item to one worker at a time, however many
processes poll, and to another worker when the first one dies. docs/decisions/0012-external-queues.md says why
no item is taken twice.

A worker gives its requests to `ExternalSource.do` as it would to a broker.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from fairlead.errors import FairleadError, Forbidden, QueueExists
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason, Progress
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.model.message import NewMessage
from fairlead.model.names import TAKEN_SUFFIX, taken_name
from fairlead.model.settle import Complete, Extend, Fail
from fairlead.processes.lifetime import describe_exit
from fairlead.processes.run import KillReason, run
from fairlead.request import Answer, Request
from fairlead.runbook.items import canonical, content_key
from fairlead.runbook.model import TAKEN_OPTIONS, QueueSpec
from fairlead.runbook.placeholders import fill
from fairlead.surface import Surface
from fairlead.verbs.claim import Claim
from fairlead.worker.command import fields_of
from fairlead.worker.job import Job

_log = logging.getLogger("fairlead.worker")

#: Limits of one `list` or `take`: how long it runs, how much it prints, how many of its items are read.
COMMAND_LIMIT_S = 60.0
MAX_LISTED_BYTES = 16 * 1024 * 1024
MAX_ITEMS = 10_000
#: A list that took longer than this is discarded: it may name items that were completed since.
STALE_S = 2 * COMMAND_LIMIT_S

#: Progress stored before `take` runs and after it succeeded, so that the next holder knows whether the item
#: is taken.
TAKING, TAKEN = int(Progress.STORED), int(Progress.EVENT_STORED)

_CHUNK = 500
_SHOWN_BYTES = 2000
_MAX_KEY_BYTES = 400


class Ran(NamedTuple):
    """`trouble`: why the command did not succeed, or ""."""

    stdout: bytes
    stderr: str
    trouble: str


def _run(arguments: Sequence[str], stdin: bytes, base: str) -> Ran:
    """Run a `list` or `take` command within the limits."""
    name = repr(arguments[0])
    if any("\0" in argument for argument in arguments):
        return Ran(b"", "", f"expected no NUL character in an argument of {name}")
    try:
        finished = run(
            arguments,
            cwd=base,
            stdin=stdin,
            keep_bytes=MAX_LISTED_BYTES,
            timeout_s=COMMAND_LIMIT_S,
            max_stdout_bytes=MAX_LISTED_BYTES,
        )
    except OSError as error:
        return Ran(b"", "", f"{name} could not be started: {error.strerror}")
    if finished.killed is KillReason.TOO_LONG:
        trouble = f"{name} took longer than {COMMAND_LIMIT_S:.0f} s and was killed"
    elif finished.stdout.size > MAX_LISTED_BYTES:
        trouble = f"{name} printed more than {MAX_LISTED_BYTES} bytes"
    elif finished.code:
        trouble = f"{name} {describe_exit(finished.code)}"
    else:
        trouble = ""
    stderr = bytes(finished.stderr.head[:_SHOWN_BYTES]).decode("utf-8", "replace").strip()
    if trouble and stderr:
        trouble = f"{trouble}: {stderr}"
    return Ran(bytes(finished.stdout.head), stderr, trouble)


class ExternalSource(Surface):
    """`name`: the external queue with its project. `base`: the directory of its commands. `queue`: the
    broker's queue.
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
        #: An item that was taken while the broker could not be reached: only this worker knows that it is
        #: taken.
        self._unmarked: Delivery | None = None

    def do(self, request: Request[Answer]) -> Answer:
        """A claim returns items that were taken; every other request goes to the broker."""
        if isinstance(request, Claim):
            return cast(Answer, self._claim(request))
        return self._target.do(request)

    def _claim(self, request: Claim) -> list[Delivery]:
        """One item that was taken, or none. Polls first when a poll is due; waits for the first poll only."""
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
            # One at a time: nothing extends the lease of an item while the item before it is being taken.
            wait = self._until_next(request.wait)
            deliveries = self._target.claim(
                self.queue, limit=1, wait=wait, consumer=request.consumer, started=False
            )
            if not deliveries:
                return []
            if self.take(deliveries[0]):
                return deliveries

    def open(self) -> None:
        """Create the broker's queue if `fairlead apply` has not: a runbook may exist only as files."""
        if any(info.name == self.queue for info in self._target.queues(self.queue)):
            return
        try:
            self._target.create_queue(self.queue, **TAKEN_OPTIONS)
        except QueueExists:
            return  # another worker was faster
        except Forbidden as refused:
            refused.add_note(
                f"create queue {self.queue!r} with: fairlead apply; a worker then needs only consume and produce on it"
            )
            raise

    def poll(self) -> list[object]:
        """The items that `list` prints. A list that fails logs a warning and counts as empty."""
        assert self._spec.list is not None
        self._polled_at = began = self._now()
        ran = _run(self._spec.list, b"", self._base)
        if ran.trouble:
            return self._warn("list failed", ran)
        try:
            found = json.loads(ran.stdout)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list):
            return self._warn("list did not print a JSON array", ran)
        if self._now() - began > STALE_S:
            return self._warn("discarded a list that took too long", ran)
        if len(found) > MAX_ITEMS:
            self._warn(f"list has {len(found)} items, of which the first {MAX_ITEMS} are read", ran)
        return found[:MAX_ITEMS]

    def offer(self, items: Sequence[object]) -> None:
        """Enqueue the items, each once: an item that is there already or was completed recently stays as it
        is.
        """
        messages = list(self._messages(items))
        for start in range(0, len(messages), _CHUNK):
            self._target.enqueue_many(self.queue, messages[start : start + _CHUNK])

    def take(self, delivery: Delivery) -> bool:
        """Whether the item is taken for this worker. An item that `take` refuses is dropped and may be listed
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
            # An earlier worker may have taken the item and died before it could store that. A person must
            # decide.
            text = f"a worker died while it took this item, and it cannot be taken again: {trouble}"
            self._target.settle([Fail(delivery, text, FailureReason.DEPENDENCY_FAILURE, dead=True)])
        else:
            _log.warning(
                "an item was not taken",
                extra={"fields": {"queue": self._name, "id": delivery.id, "why": trouble}},
            )
            self._drop(delivery)
        return False

    def _poll_when_due(self) -> None:
        due = self._spec.poll_ms is not None and self._now() - self._polled_at >= self._spec.poll_ms / 1000
        if due and (self._polling is None or not self._polling.is_alive()):
            self._polling = threading.Thread(target=self._poll_in_thread, name="fairlead-poll", daemon=True)
            self._polling.start()

    def _poll_in_thread(self) -> None:
        try:
            self.offer(self.poll())
        except FairleadError as error:
            _log.warning(
                "could not enqueue the listed items",
                extra={"fields": {"queue": self._name, "error": error.code}},
            )
        except Exception:
            _log.exception("a poll failed unexpectedly", extra={"fields": {"queue": self._name}})

    def _until_next(self, wait: Any) -> Any:
        """`wait`, but not beyond the next poll. A poll under way ends the wait by the items that it enqueues."""
        is_polling = self._polling is not None and self._polling.is_alive()
        if wait is None or self._spec.poll_ms is None or is_polling:
            return wait
        left_ms = self._spec.poll_ms - (self._now() - self._polled_at) * 1000
        return f"{max(10, min(to_ms(wait, 'wait'), round(left_ms)))}ms"

    def _messages(self, items: Sequence[object]) -> Iterator[NewMessage]:
        for item in items:
            try:
                payload = canonical(item)
            except ValueError as wrong:
                _log.warning(
                    "ignored an entry of the list that is not an item",
                    extra={"fields": {"queue": self._name, "why": str(wrong)}},
                )
                continue
            if len(payload) > MAX_PAYLOAD_BYTES:
                _log.warning(
                    "ignored an item of the list that is too large",
                    extra={"fields": {"queue": self._name, "bytes": len(payload)}},
                )
                continue
            yield NewMessage(payload, dedup_key=identity(item, payload))

    def _run_take(self, delivery: Delivery) -> str:
        """Run `take`. Returns why the item was not taken, or "" if it was."""
        assert self._spec.take is not None
        fields = fields_of(json.loads(delivery.payload))
        try:
            arguments = [fill(argument, fields) for argument in self._spec.take]
        except KeyError as missing:
            return f"expected the item to have a field {missing.args[0]!r}, as the command does"
        return _run(arguments, delivery.payload, self._base).trouble

    def _mark(self, delivery: Delivery, progress: int) -> bool:
        """Store the progress, durably. Returns False if another consumer has the item by now."""
        (result,) = self._target.settle([Extend(delivery, progress=progress)])
        return result.ok

    def _mark_taken(self, delivery: Delivery) -> bool:
        """Store that the item is taken. If the broker is unavailable, the next claim tries again first."""
        self._unmarked = delivery
        marked = self._mark(delivery, TAKEN)
        self._unmarked = None
        return marked

    def _drop(self, delivery: Delivery) -> None:
        """Forget the item as if it had never been listed.

        A worker without the right to drop completes it; then the item cannot be listed again for some
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
    assert job.external is not None
    return ExternalSource(target, job.external, job.queue.removesuffix(TAKEN_SUFFIX), base=job.base)


def identity(item: object, payload: bytes) -> str:
    """The dedup key of an item: its `id`, else its `number`, else its content. The number 7 and the text "7"
    differ.
    """
    if isinstance(item, dict):
        for field in ("id", "number"):
            value = item.get(field)
            if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
                key = f"{field}:{json.dumps(value, ensure_ascii=False)}"
                if len(key.encode()) > _MAX_KEY_BYTES:
                    return f"{field}:{content_key(key.encode())}"
                return key
    return content_key(payload)
