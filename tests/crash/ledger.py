"""The rules a history must keep, whatever was killed when. Each rule gives the benefit of the doubt once, and
only where the journal really cannot tell: an operation cut off by a kill may or may not have happened.

A kill by itself explains nothing: leases outlive the process, so a message held at the kill stays held until
its lease ends. `check` wants a history that ends with everything drained; then whatever was confirmed must
have come out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from .history import Delivery, Enqueue, History, Operation, Settlement

#: Between the broker reading the clock and the journal doing so the wall clock may be slewed.
CLOCK_TOLERANCE_MS = 25

_ENDS_A_LEASE = ("complete", "fail", "release")
_DONE = ("completed", "retry", "dead", "released", "returned", "extended", "started")


@dataclass(frozen=True, slots=True)
class Problem:
    rule: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.subject}: {self.detail}"


def check(history: History) -> list[Problem]:
    """Every breach of a rule in a history that ends drained."""
    return list(_Ledger(history).problems())


def source_of(queue: str) -> str:
    """A queue and its dead-letter queue are one account."""
    return queue.removesuffix(".dlq")


class _Ledger:
    def __init__(self, history: History) -> None:
        self.history = history
        self.enqueues = {e.tag: e for e in history.enqueues}
        self.redrives = _by_queue(history.of("redrive"))
        self.removals = _by_queue(history.of("purge", "delete_queue"))
        self.goodbyes = history.of("goodbye")
        self.deaths = {o.told["who"]: o for o in history.of("client_killed")}
        outages = history.of("outage")
        # Through an outage a claim is repeated; what was leased by the first copy may have run out by then,
        # seen by nobody.
        self.cut_claims = [
            o
            for o in history.of("claim")
            if not o.confirmed or any(o.begin < x.end and x.begin < o.end for x in outages)
        ]
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        for d in history.deliveries:
            self.deliveries[d.id].append(d)
        for group in self.deliveries.values():
            group.sort(key=lambda d: (d.turn, d.operation.end))

    def problems(self) -> Iterator[Problem]:
        yield from self._phantoms()
        yield from self._identities()
        yield from self._dedup()
        yield from self._losses()
        for message_id, deliveries in self.deliveries.items():
            distinct = _one_per_lease(deliveries)
            yield from self._after_complete(distinct)
            yield from self._fencing(message_id, distinct)
            yield from self._dead_letters(_read_in_time(distinct))
            for earlier, later in pairwise(distinct):
                yield from self._pair(earlier, later)
            for earlier, later in pairwise(_read_in_time(distinct)):
                yield from self._counts(earlier, later)

    def _phantoms(self) -> Iterator[Problem]:
        for d in self.history.deliveries:
            enqueue = self.enqueues.get(d.tag)
            if enqueue is None:
                yield Problem("phantom", d.tag, f"delivered from {d.queue} as {d.id}, but nobody enqueued it")
            elif enqueue.operation.refused or enqueue.operation.begin > d.operation.end:
                yield Problem("phantom", d.tag, "delivered though its enqueue was refused or had not begun")
            elif source_of(d.queue) != source_of(enqueue.queue):
                yield Problem("phantom", d.tag, f"enqueued into {enqueue.queue}, delivered from {d.queue}")
            elif d.operation.ended_ms + CLOCK_TOLERANCE_MS < enqueue.operation.began_ms + enqueue.delay_ms:
                yield Problem("early", d.tag, f"delivered before its delay of {enqueue.delay_ms} ms was over")
            elif self._deleted_between(enqueue, d):
                yield Problem(
                    "phantom", d.tag, f"delivered from {d.queue}, which was deleted after it was enqueued"
                )

    def _deleted_between(self, e: Enqueue, d: Delivery) -> bool:
        deletes = (o for o in self.removals[source_of(d.queue)] if o.do == "delete_queue" and o.confirmed)
        return any(e.operation.end < o.begin and o.end < d.operation.begin for o in deletes)

    def _identities(self) -> Iterator[Problem]:
        tags: dict[str, set[str]] = defaultdict(set)
        ids: dict[str, set[str]] = defaultdict(set)
        for d in self.history.deliveries:
            tags[d.id].add(d.tag)
            ids[d.tag].add(d.id)
        for e in self.history.enqueues:
            if e.id and e.dedup_key is None:
                tags[e.id].add(e.tag)
                ids[e.tag].add(e.id)
        for message_id, found in tags.items():
            if len(found) > 1:
                yield Problem("identity", message_id, f"one id, several messages: {sorted(found)}")
        for tag, found in ids.items():
            if len(found) > 1:
                yield Problem("identity", tag, f"enqueued once, stored as {sorted(found)}")

    def _dedup(self) -> Iterator[Problem]:
        """The windows of the workload are longer than a round, so a dedup key stands for one message, for
        good.
        """
        twins: dict[tuple[str, str], set[str]] = defaultdict(set)
        for e in self.history.enqueues:
            if e.dedup_key is not None and e.id:
                twins[e.queue, e.dedup_key].add(e.id)
        for d in self.history.deliveries:
            enqueue = self.enqueues.get(d.tag)
            if enqueue is not None and enqueue.dedup_key is not None:
                twins[enqueue.queue, enqueue.dedup_key].add(d.id)
        for (queue, key), found in twins.items():
            if len(found) > 1:
                yield Problem("dedup", f"{queue} {key}", f"one dedup key, several messages: {sorted(found)}")

    def _losses(self) -> Iterator[Problem]:
        for e in self.history.enqueues:
            if e.id is None or self._was_removed(e):
                continue
            if any(
                s.kind == "complete" and s.outcome in ("completed", None) for s in self._settlements(e.id)
            ):
                continue
            seen = len(self.deliveries[e.id]) if e.id in self.deliveries else 0
            yield Problem(
                "lost",
                e.tag,
                f"confirmed in {e.queue} as {e.id}, delivered {seen} times, never completed, and not there at the end",
            )

    def _was_removed(self, e: Enqueue) -> bool:
        return any(o.end > e.operation.begin for o in self.removals[source_of(e.queue)])

    def _after_complete(self, deliveries: list[Delivery]) -> Iterator[Problem]:
        for s in self._settlements(deliveries[0].id):
            if s.kind != "complete" or s.outcome != "completed":
                continue
            for d in deliveries:
                later = d.operation.begin > s.operation.end if s.lease is None else d.turn > int(s.lease, 16)
                if later:
                    yield Problem(
                        "redelivered",
                        d.tag,
                        f"completed under lease {s.lease}, delivered again under lease {d.lease}",
                    )
        completes = [s for s in self._settlements(deliveries[0].id) if s.outcome == "completed"]
        if len(completes) > 1:
            yield Problem(
                "redelivered", deliveries[0].tag, f"{len(completes)} confirmed completes of one message"
            )

    def _fencing(self, message_id: str, deliveries: list[Delivery]) -> Iterator[Problem]:
        by_lease = {d.lease: d for d in deliveries}
        for s in self._settlements(message_id):
            held = by_lease.get(s.lease or "")
            if held is None:
                continue
            if s.outcome in _DONE:
                for d in deliveries:
                    if d.turn > held.turn and d.operation.end < s.operation.begin:
                        yield Problem(
                            "fencing",
                            held.tag,
                            f"{s.kind} under lease {s.lease} took effect after lease {d.lease} was granted",
                        )
            elif s.outcome in ("lost_lease", "not_found") and not self._lease_over(held, s.operation, s):
                yield Problem(
                    "fencing",
                    held.tag,
                    f"{s.kind} under lease {s.lease} said {s.outcome}, but nothing had ended that lease",
                )

    def _dead_letters(self, deliveries: list[Delivery]) -> Iterator[Problem]:
        for d in deliveries:
            if any(
                o.begin < d.operation.end and o.end > d.operation.begin
                for o in self.redrives[source_of(d.queue)]
            ):
                continue  # released and redriven before its record was read
            if d.queue.endswith(".dlq") and not (
                d.source == source_of(d.queue) and d.dead_since and d.failures
            ):
                yield Problem(
                    "record",
                    d.tag,
                    f"a bare dead letter: source {d.source!r}, dead since {d.dead_since}, {d.failures} failures",
                )

    def _pair(self, earlier: Delivery, later: Delivery) -> Iterator[Problem]:
        if later.operation.end < earlier.granted_after:
            yield Problem(
                "fencing",
                later.tag,
                f"lease {later.lease} was granted before lease {earlier.lease}, yet sorts after it",
            )
        if not self._lease_over(earlier, later.operation):
            seen_ms = later.operation.ended_ms
            yield Problem(
                "duplicate",
                later.tag,
                f"lease {earlier.lease} ran until {earlier.until_ms}, lease {later.lease} was there at {seen_ms}",
            )

    def _counts(self, earlier: Delivery, later: Delivery) -> Iterator[Problem]:
        unseen = sum(
            earlier.operation.begin < o.end and o.begin < later.operation.end for o in self.cut_claims
        )
        most = 1 + unseen + sum(earlier.turn < d.turn < later.turn for d in self.deliveries[later.id])
        if later.attempts > earlier.attempts + most:
            yield Problem(
                "attempts",
                later.tag,
                f"{most} deliveries at most turned {earlier.attempts} attempts into {later.attempts}",
            )
        if not self._redriven_between(earlier, later):
            yield from self._same_life(earlier, later)

    def _same_life(self, earlier: Delivery, later: Delivery) -> Iterator[Problem]:
        """No redrive came between the two."""
        if not earlier.queue.endswith(".dlq"):
            fails = [s for s in self._under(earlier) if s.kind == "fail" and s.outcome in ("retry", "dead")]
            if later.attempts < earlier.attempts + len(fails):
                yield Problem(
                    "attempts",
                    later.tag,
                    f"{earlier.attempts} attempts and {len(fails)} failures became {later.attempts}",
                )
            returns = [s for s in self._under(earlier) if s.outcome == "returned"]
            for s in [*fails, *returns]:
                yield from self._after_fail(s, later)
        elif not later.queue.endswith(".dlq"):
            yield Problem("duplicate", later.tag, "a dead letter came back to life without a redrive")
        elif (later.attempts, later.failures) != (earlier.attempts, earlier.failures):
            yield Problem("record", later.tag, "attempts or failures changed inside the dead-letter queue")

    def _after_fail(self, s: Settlement, later: Delivery) -> Iterator[Problem]:
        if s.outcome in ("retry", "returned") and later.operation.ended_ms + CLOCK_TOLERANCE_MS < s.due_ms:
            yield Problem(
                "early", later.tag, f"told to wait until {s.due_ms}, delivered by {later.operation.ended_ms}"
            )
        if s.outcome == "dead":
            if not later.queue.endswith(".dlq"):
                yield Problem(
                    "duplicate", later.tag, "it was dead, nothing redrove it, and it was delivered again"
                )
            elif later.last_error != s.error:
                yield Problem(
                    "record", later.tag, f"died of {s.error!r}, the dead letter says {later.last_error!r}"
                )

    def _lease_over(self, held: Delivery, by: Operation, asking: Settlement | None = None) -> bool:
        """Could the lease have ended before `by` was over? (By anything but `asking`, the settlement that
        wonders.)
        """
        if by.ended_ms + CLOCK_TOLERANCE_MS >= self._earliest_end_ms(held, by):
            return True
        for s in self._settlements(held.id):
            if s is asking or s.kind not in _ENDS_A_LEASE or s.operation.begin > by.end:
                continue
            acts_on_it = s.lease == held.lease or (s.lease is None and s.operation.end > held.operation.begin)
            if acts_on_it and (s.outcome is None or s.outcome in _DONE):
                return True
        if any(
            o.told["consumer"] == held.consumer and held.operation.begin < o.end and o.begin < by.end
            for o in self.goodbyes
        ):
            return True
        death = self.deaths.get(held.operation.life)
        if death is not None and death.begin < by.end:
            # A server whose write fails gives back what it was about to send. That it had just arrived cannot
            # be known.
            return True
        return asking is not None and any(
            _touches(o, held.operation, by) for o in self.removals[source_of(held.queue)]
        )

    def _earliest_end_ms(self, held: Delivery, by: Operation) -> int:
        """The lease's end by the last extension that surely came first; an uncertain one counts only where it
        shortens.
        """
        ends = held.until_ms
        for s in self._under(held):
            if s.kind != "extend" or s.operation.begin > by.end:
                continue
            if s.outcome == "extended" and s.operation.end < by.begin:
                ends = s.until_ms
            elif s.outcome in ("extended", None):
                ends = min(ends, s.operation.began_ms + s.duration_ms)
        return ends

    def _redriven_between(self, earlier: Delivery, later: Delivery) -> bool:
        return any(
            _touches(o, earlier.operation, later.operation) for o in self.redrives[source_of(later.queue)]
        )

    def _settlements(self, message_id: str) -> list[Settlement]:
        return self.history.settlements.get(message_id, [])

    def _under(self, held: Delivery) -> list[Settlement]:
        return [s for s in self._settlements(held.id) if s.lease == held.lease]


def _touches(resumable: Operation, earlier: Operation, later: Operation) -> bool:
    """Could the operation have worked between the two?"""
    return resumable.begin < later.end and (resumable.end > earlier.begin or resumable.goes_on)


def _by_queue(operations: list[Operation]) -> dict[str, list[Operation]]:
    grouped: dict[str, list[Operation]] = defaultdict(list)
    for o in operations:
        grouped[source_of(o.told["queue"])].append(o)
    return grouped


def _read_in_time(deliveries: list[Delivery]) -> list[Delivery]:
    """Without those whose record was read so late that their lease was over, or the next one granted.

    A claim reads records after it has let go of the lock; a goodbye or an expiry in between leaves it with a
    fenced delivery that tells what happened since.
    """
    in_time = [d for d in deliveries if d.operation.ended_ms < d.until_ms]
    return [
        d
        for d in in_time
        if not any(o.turn > d.turn and o.operation.begin < d.operation.end for o in deliveries)
    ]


def _one_per_lease(deliveries: list[Delivery]) -> list[Delivery]:
    """A claim repeated with its token shows the same delivery again: the same lease, hence no duplicate."""
    return list({d.lease: d for d in reversed(deliveries)}.values())[::-1]
