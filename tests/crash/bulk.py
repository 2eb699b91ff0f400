"""A purge, delete or redrive of 30,000 messages, so that a kill falls between its steps; and what must be
true in the end.

Selected messages are worked on all or not at all, in whatever life the last step runs. Everything else is
left alone: what was leased, what is dead (for a purge), dead letters the filter leaves out, other queues, and
what came afterwards.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from fairlead import Complete, DeadFilter, NewMessage
from fairlead.testing.steps import kill_process_at

from .journal import RecordedBroker, make_payload

SELECTED = 30_000
HELD = 200
LEFT_OUT = 1_000
VERBS = ("purge", "delete_queue", "redrive")
LONG = "600000ms"


class Bulk:
    def __init__(self, recorded: RecordedBroker, *, verb: str, seed: int, life: int) -> None:
        self.recorded = recorded
        self.verb = verb
        self.life = life
        self.rng = random.Random(f"{seed}-{life}")
        self.failure: BaseException | None = None

    def prepare(self) -> None:
        for queue in ("bulk", "bystander"):
            self.recorded.operate("create_queue", queue, visibility_timeout=LONG)
        self._enqueue("bystander", "bystander", LEFT_OUT)
        if self.verb == "redrive":
            # A dead-letter queue has a lease of its own: on a busy machine its 30 s were over before the redrive.
            self.recorded.broker.update_queue("bulk.dlq", visibility_timeout=LONG)
            self._quarantine("held", HELD, "selected")
            self.recorded.claim("bulk.dlq", limit=HELD, consumer="holder")
            for _ in range(SELECTED // LEFT_OUT):
                self._quarantine("selected", LEFT_OUT, "selected")
            self._quarantine("left-out", LEFT_OUT, "another")
        else:
            self._enqueue("bulk", "held", HELD)
            self.recorded.claim("bulk", limit=HELD, consumer="holder")
            self._enqueue("bulk", "selected", LEFT_OUT, delay=LONG)
            self._enqueue("bulk", "selected", SELECTED - LEFT_OUT)
            self._quarantine("dead", LEFT_OUT, "another")

    def run(self) -> None:
        """The operation, with traffic beside it. Returns when it is over."""
        self._traffic("late")
        options: dict[str, Any] = {}
        if self.verb == "redrive":
            options = {"filter": DeadFilter(error="selected")} | self.rng.choice(({}, {"rate": 100_000}))
        self.recorded.operate(self.verb, "bulk", **options)

    def resume(self) -> None:
        """A later life: the operation goes on by itself, beside new messages that it must not touch."""
        if "bulk" not in {info.name for info in self.recorded.broker.queues()}:
            self.recorded.operate("create_queue", "bulk", visibility_timeout=LONG)
        self._traffic("after")

    def _traffic(self, label: str) -> None:
        threading.Thread(target=self._produce_forever, args=(label,), daemon=True).start()

    def _produce_forever(self, label: str) -> None:
        try:
            for round_number in itertools.count():
                self._enqueue("bulk", f"{label}-{round_number}", 20)
                self._enqueue("bystander", f"bystander-{label}-{round_number}", 20)
                self.recorded.settle(
                    [Complete(d) for d in self.recorded.claim("bystander", limit=20, consumer="worker")]
                )
        except BaseException as error:
            self.failure = error

    def _enqueue(self, queue: str, label: str, count: int, delay: str | None = None) -> None:
        start = self.rng.getrandbits(40)
        for at in range(0, count, 1000):
            drafts = []
            for n in range(at, min(count, at + 1000)):
                tag = f"{label}/{self.life}/{start}/{n}"
                drafts.append(
                    (tag, NewMessage(make_payload(tag, 20), fairness_key=f"k{n % 20}", delay=delay))
                )
            self.recorded.enqueue(queue, drafts)

    def _quarantine(self, label: str, count: int, error: str) -> None:
        start = self.rng.getrandbits(40)
        tags = [f"{label}/{self.life}/{start}/{n}" for n in range(count)]
        drafts = [
            (tag, NewMessage(make_payload(tag, 20), fairness_key=f"k{n % 20}")) for n, tag in enumerate(tags)
        ]
        self.recorded.quarantine("bulk", drafts, "handler_exception", error)


def die_at_step(step: int, *, before: bool) -> None:
    """SIGKILL this very process at the n-th commit that saves or ends an intent: just before it, or just
    after.
    """
    kill_process_at(step, "save operation", "end operation", before=before)


def happened(verb: str, drained: Iterable[tuple[str, str]]) -> bool:
    """Whether the operation touched anything, going by a drain as (tag, queue) pairs."""
    selected = sum(tag.startswith("selected/") and queue == "bulk" for tag, queue in drained)
    return selected > 0 if verb == "redrive" else selected < SELECTED


def half_done(verb: str, confirmed: bool, drained: Collection[tuple[str, str]]) -> list[str]:
    """What a drain shows that no whole operation leaves behind. Empty is good."""
    found = Counter((tag.split("/")[0], queue) for tag, queue in drained)
    whole = confirmed or happened(verb, drained)
    expected: dict[tuple[str, str], int]
    if verb == "redrive":
        moved = SELECTED if whole else 0
        expected = {("selected", "bulk"): moved, ("selected", "bulk.dlq"): SELECTED - moved}
        expected |= {("held", "bulk.dlq"): HELD, ("left-out", "bulk.dlq"): LEFT_OUT}
    else:
        kept = 0 if whole and verb == "delete_queue" else 1
        expected = {
            ("selected", "bulk"): 0 if whole else SELECTED,
            ("held", "bulk"): kept * HELD,
            ("dead", "bulk.dlq"): kept * LEFT_OUT,
        }
    return [
        f"{tag} in {queue}: expected {want}, found {found[tag, queue]}"
        for (tag, queue), want in expected.items()
        if found[tag, queue] != want
    ]
