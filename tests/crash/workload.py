"""What a victim does until it is killed: producers, consumers and an operator on threads, each driven by the
round's seed.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fairlead
from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, Release, Start

from .journal import RecordedBroker, make_payload, read_journal

MAIN = ("main", "second")
#: Purged, deleted and made again while in use.
SIDE = ("side-0", "side-1")
LEASE = "300ms"
#: A throttle key that consumers close again and again.
PROVIDER = "provider"
Job = Callable[[random.Random, str], None]
#: Producers rest while so many of this life are unsettled, so that draining a round stays short.
BACKLOG_LIMIT = 3000

QUEUES: dict[str, dict[str, Any]] = {
    "main": {"visibility_timeout": LEASE, "retry": {"policy": "immediate", "attempts": 4}, "dedup": "1h"},
    "second": {
        "visibility_timeout": "150ms",
        "retry": {"policy": "immediate"},
        "max_attempts": 3,
        "dedup": "1h",
        "retain_completed": "100ms",
    },
    "side-0": {"visibility_timeout": LEASE, "retry": "none", "retain_completed": "1h"},
    "side-1": {"visibility_timeout": LEASE, "max_deliveries": 20},
}
CLAIMED: tuple[str | list[str], ...] = (*MAIN, *MAIN, *SIDE, "main.dlq", "second.dlq", [*MAIN])
REDRIVES: tuple[dict[str, Any], ...] = (
    {},
    {"count": 20},
    {"dry_run": True},
    {"filter": DeadFilter(reason="handler_exception")},
    {"filter": DeadFilter(error="bad luck"), "count": 50},
)


class Workload:
    def __init__(self, recorded: RecordedBroker, *, seed: int, life: int) -> None:
        self.recorded = recorded
        self.seed = seed
        self.life = life
        self.backlog = 0
        self.failure: BaseException | None = None
        self._numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    def prepare(self, previous: Path | None) -> None:
        """Make the queues that are missing, and settle some of what an earlier life held when it was killed."""
        present = {info.name for info in self.recorded.broker.queues()}
        for name, options in QUEUES.items():
            if name not in present:
                self.recorded.operate("create_queue", name, **options)
        self.recorded.broker.config.set("throttle:slow:rate", "500")
        if previous is not None:
            self._settle_what_was_held(previous)

    def jobs(self) -> list[Job]:
        """Each is repeated on a thread of its own."""
        return [self.produce, self.produce, self.consume, self.consume, self.consume, self.operate]

    def run(self) -> None:
        """Returns only when a thread met an error that nobody expects."""
        threads = [
            threading.Thread(target=self._forever, args=(job, n), daemon=True)
            for n, job in enumerate(self.jobs())
        ]
        for thread in threads:
            thread.start()
        while self.failure is None:
            time.sleep(0.05)
        raise self.failure

    def produce(self, rng: random.Random, name: str) -> None:
        if self.backlog > BACKLOG_LIMIT:
            time.sleep(0.005)
            return
        queue = rng.choice(MAIN * 3 + SIDE)
        batch = [self._draft(rng, queue, name) for _ in range(rng.choice((1, 1, 5, 20, 100)))]
        self.backlog += len(self.recorded.enqueue(queue, batch))

    def consume(self, rng: random.Random, name: str) -> None:
        queue = rng.choice(CLAIMED)
        options: dict[str, Any] = {
            "limit": rng.choice((1, 5, 30, 100)),
            "consumer": name,
            "started": rng.random() < 0.7,
        }
        if rng.random() < 0.3:
            options["wait"] = "10ms"
        if rng.random() < 0.15:
            options["token"] = f"{name}-{self.life}-{rng.getrandbits(40)}"
        deliveries = self.recorded.claim(queue, **options)
        if "token" in options and deliveries:
            deliveries = self.recorded.claim(queue, **options)
        if not options["started"]:
            self.recorded.settle([Start(d) for d in deliveries if rng.random() < 0.5])
        self._settle(rng, name, deliveries)

    def operate(self, rng: random.Random, name: str) -> None:
        time.sleep(0.004)
        side, main = rng.choice(SIDE), rng.choice(MAIN)
        roll = rng.random()
        if roll < 0.25:
            self.recorded.operate("purge", rng.choice((side, side + ".dlq")))
        elif roll < 0.35:
            self.recorded.operate("delete_queue", side)
        elif roll < 0.45:
            self.recorded.operate("create_queue", side, **QUEUES[side])
        elif roll < 0.75:
            self.recorded.operate("redrive", rng.choice((main, side)), **rng.choice(REDRIVES))
        elif roll < 0.85:
            error = f"quarantined in {self.life}"
            self.recorded.quarantine(
                main, [self._draft(rng, "", name) for _ in range(5)], "poison_message", error
            )
        elif roll < 0.9:
            self.recorded.goodbye(f"t{rng.choice((2, 3, 4))}")
        else:
            self._look(main)

    def _settle(self, rng: random.Random, name: str, deliveries: list[fairlead.Delivery]) -> None:
        items: list[Any] = []
        extended = []
        for d in deliveries:
            roll = rng.random()
            if d.throttle_keys == (PROVIDER,) and rng.random() < 0.1:
                error = f"429, says {name} {rng.getrandbits(24)}"
                items.append(Fail(d, error, retry_after=rng.choice(("20ms", "100ms")), close=PROVIDER))
            elif roll < 0.55:
                items.append(Complete(d))
            elif roll < 0.65:
                items.append(
                    Fail(d, error=f"bad luck of {name} {rng.getrandbits(24)}", reason="handler_exception")
                )
            elif roll < 0.70:
                items.append(
                    Fail(
                        d,
                        error=f"later, says {name} {rng.getrandbits(24)}",
                        retry_in=rng.choice(("30ms", "300ms")),
                    )
                )
            elif roll < 0.75:
                items.append(
                    Fail(
                        d,
                        error=f"hopeless, says {name} {rng.getrandbits(24)}",
                        dead=True,
                        reason="validation_failure",
                    )
                )
            elif roll < 0.85:
                items.append(Release(d))
            elif roll < 0.90:
                items.append(Extend(d, rng.choice(("600ms", "200ms")), progress=1, carry=b"half way"))
                extended.append(d)
            elif roll < 0.92:
                self.recorded.by_id(rng.choice(("ack", "nack")), d.queue, d.id)
            # The rest is left to expire, as by a worker that hangs.
        results = self.recorded.settle(items)
        self.recorded.settle([Complete(d) for d in extended if rng.random() < 0.7])
        self.backlog -= sum(r.outcome in ("completed", "dead") for r in results)
        if rng.random() < 0.05:
            time.sleep(0.16)
            self.recorded.settle([Complete(d) for d in deliveries if rng.random() < 0.5])

    def _draft(self, rng: random.Random, queue: str, name: str) -> tuple[str, NewMessage]:
        tag = f"{self.life}-{name}-{next(self._numbers[name])}"
        roll = rng.random()
        return tag, NewMessage(
            make_payload(tag, rng.choice((20, 200, 1000))),
            headers={"tenant": name} if roll < 0.3 else None,
            fairness_key=f"tenant-{rng.randrange(6)}",
            weight=rng.choice((1, 1, 3)),
            throttle_keys=("slow",) if roll > 0.95 else (PROVIDER,) if roll > 0.85 else (),
            delay=rng.choice(("20ms", "100ms", "700ms")) if rng.random() < 0.1 else None,
            dedup_key=f"d{rng.randrange(400)}" if queue in MAIN and rng.random() < 0.1 else None,
        )

    def _look(self, queue: str) -> None:
        broker = self.recorded.broker
        looks: list[Callable[[], Any]] = [
            lambda: broker.stats(queue, keys=True),
            lambda: broker.peek(queue, limit=5),
            lambda: broker.peek(queue, limit=5, where="waiting"),
            lambda: broker.explain_queue(queue),
        ]
        for look in looks:
            look()

    def _settle_what_was_held(self, previous: Path) -> None:
        held: dict[str, fairlead.DeliveryRef] = {}
        for line in read_journal(previous):
            for d in line.get("deliveries", ()):
                held[d["id"]] = fairlead.DeliveryRef(d["id"], d["lease"])
            for item in line.get("items", ()):
                held.pop(item[1], None)
        self.recorded.settle([Complete(ref) for ref in list(held.values())[:50]])

    def _forever(self, job: Job, number: int) -> None:
        name = f"t{number}"
        rng = random.Random(f"{self.seed}-{self.life}-{number}")
        try:
            while True:
                job(rng, name)
        except BaseException as error:
            self.failure = error
