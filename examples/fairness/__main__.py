"""Five tenants share one durable queue: `make demo ARGS=--fairness`, or `python -m examples.fairness
--quick`.

One tenant is noisy, payments fail in five different ways, some of them die, a bug is fixed, and everything
completes. It works in a temporary directory with every write synced, and removes it at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

import fairlead
from examples.fairness import screen
from examples.fairness.ledger import Ledger
from examples.fairness.tenants import FULL, QUICK, Plan
from examples.fairness.worker import BATCH, QUEUE, Handler, Worker
from fairlead import DeadFilter

WORKERS = 8
DEAD_LETTERS = QUEUE + ".dlq"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.fairness", description="Five tenants share one durable queue."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        default=bool(os.environ.get("FAIRLEAD_DEMO_QUICK")),
        help="a tenth of the work, in seconds",
    )
    parser.add_argument("--seed", type=int, default=11, help="chooses which payments are in trouble")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-fairness-") as scratch:
        try:
            return Demo(
                QUICK if given.quick else FULL, Path(scratch) / "data", given.seed, screen.make_console()
            ).run()
        except KeyboardInterrupt:
            print("\nStopped; nothing is left behind.")
            return 130


class Demo:
    def __init__(self, plan: Plan, path: Path, seed: int, console: Console) -> None:
        self.plan = plan
        self.tenants = plan.tenants
        self.path = path
        self.rng = random.Random(seed)
        self.console = console
        self.ledger = Ledger([tenant.name for tenant in self.tenants])
        self.handler = Handler()
        self.workers: list[Worker] = []

    def run(self) -> int:
        noisy = self.tenants[-1]
        with fairlead.open(self.path) as broker:
            broker.create_queue(QUEUE, visibility_timeout="2s", retry={"policy": "immediate", "attempts": 3})
            screen.step(
                self.console,
                1,
                f"{noisy.name} drops {noisy.messages:,} payments into the queue at once",
                f"The other four follow, in {self.plan.waves} waves.",
                "Each enqueue and settle is on disk before it returns.",
            )
            self._send_wave(broker, 0)
            screen.step(
                self.console,
                2,
                f"{WORKERS} workers claim {BATCH} at a time",
                "Some payments fail once, some find the bank busy, some are dropped,",
                "and some can never succeed.",
            )
            with self._crew(broker):
                self._watch(broker)
                before = self._look_at_the_dead(broker)
                self._redrive(broker)
            after = broker.stats(DEAD_LETTERS).ready
        report = fairlead.verify(self.path)
        screen.results(self.console, self.tenants, self.ledger, before, after)
        return screen.verdict(self.console, self.tenants, self.ledger, sum(before.values()), after, report)

    def _send_wave(self, broker: fairlead.Broker, number: int) -> None:
        for tenant in reversed(self.tenants):
            messages = self.plan.wave(tenant, number, self.rng)
            if messages:
                ids = broker.enqueue_many(QUEUE, messages)
                self.ledger.enqueued(tenant.name, ids, now_ms=time.time_ns() // 1_000_000)

    @contextmanager
    def _crew(self, broker: fairlead.Broker) -> Iterator[None]:
        """The workers; they have left when this ends, however it ends."""
        self.workers = [
            Worker(f"worker-{n}", broker, self.handler, self.ledger, self.plan.seconds_per_batch)
            for n in range(1, WORKERS + 1)
        ]
        for worker in self.workers:
            worker.start()
        try:
            yield
        finally:
            for worker in self.workers:
                worker.leave()
            for worker in self.workers:
                worker.join()

    def _watch(self, broker: fairlead.Broker) -> None:
        """Keep the screen up to date until only dead letters are left, and send the later waves when their
        time comes.
        """
        total = sum(tenant.messages for tenant in self.tenants)
        started, sent = time.monotonic(), 1
        with Live(console=self.console, refresh_per_second=10) as live:
            while True:
                stats = broker.stats(QUEUE)
                live.update(screen.live_view(self.tenants, self.ledger, stats, time.monotonic() - started))
                if self.ledger.completed_in_all + stats.dead == total:
                    return
                if (
                    sent < self.plan.waves
                    and time.monotonic() - started >= sent * self.plan.seconds_between_waves
                ):
                    self._send_wave(broker, sent)
                    sent += 1
                self._tick()

    def _tick(self) -> None:
        if not all(worker.is_alive() for worker in self.workers):
            raise RuntimeError("a worker stopped with the error above")
        time.sleep(0.1)

    def _look_at_the_dead(self, broker: fairlead.Broker) -> Counter[str]:
        """Read from the dead letters themselves: each knows why it died."""
        letters = broker.peek(DEAD_LETTERS, limit=1000)
        before = Counter(letter.reason.word for letter in letters if letter.reason)
        sample = max(letters, key=lambda letter: letter.attempts)
        screen.step(
            self.console,
            3,
            f"{len(letters)} payments are dead letters, each with its history",
            f"{sample.id[-8:]} of {sample.fairness_key}, for example:",
            *(f"  {f.attempt}. {f.consumer}: {f.error} [dim]({f.rule})[/]" for f in sample.failures),
        )
        return before

    def _redrive(self, broker: fairlead.Broker) -> None:
        self.handler.deploy_the_fix()
        lines = []
        for reason in ("serialization_error", "validation_failure"):
            selection = DeadFilter(reason=reason)
            expected = broker.redrive(QUEUE, filter=selection, dry_run=True).matched
            moved = broker.redrive(QUEUE, filter=selection).moved
            lines.append(f"redrive(reason={reason!r}): the dry run says {expected}, moved {moved}")
        screen.step(self.console, 4, "The fix is deployed, and the dead letters go round again", *lines)
        while self.ledger.never_completed():
            self._tick()


if __name__ == "__main__":
    sys.exit(main())
