"""The chapters, in order. What they claim at the end is counted from the Parquet file, the bank's books and
the server's metrics.
"""

from __future__ import annotations

import difflib
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from prometheus_client.parser import text_string_to_metric_families

import fairlead
from examples.demo.books import Books
from examples.demo.scratch import Scratch
from examples.demo.screen import Screen
from examples.marketplace.orders import SHOPS, write_orders
from fairlead.model.views import MessageInfo, QueueStats

EXAMPLE = Path(__file__).parents[1] / "marketplace"
QUEUE = "market/orders"
DEAD_LETTERS = QUEUE + ".dlq"

FULL = 200_000
QUICK = 10_000

#: Far longer than anything takes; who waits for it has lost.
_PATIENCE_S = 600.0

#: What somebody mends who has read why the dead letters died: file, old text, new text.
FIXES = (
    ("rates.json", '  "GBP": 1.15,\n', '  "GBP": 1.15,\n  "SEK": 0.087,\n'),
    ("steps.py", 'bank.statement_text(item["note"])', 'bank.statement_text(item["note"][:bank.MAX_TEXT])'),
)


class StoryBroken(Exception):
    """It did not go as told."""


@dataclass
class Outcome:
    """What the tables and the verdict are made of."""

    sent: Counter[str] = field(default_factory=Counter)
    paid: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    strangers: int = 0
    paid_again: int = 0
    nearly_done_s: dict[str, float] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)
    brought_back: int = 0
    left: QueueStats | None = None
    sound: bool = False

    @property
    def holds(self) -> list[tuple[bool, str]]:
        sent, paid, left = self.sent.total(), self.paid.total(), self.left
        assert left is not None
        unanswered, poison = self.failed["transport_unavailable"], self.failed["poison_message"]
        bad_rows, died = self.died["validation_failure"], self.died.total()
        nothing_left = not (left.ready or left.waiting or left.leased or left.dead)
        complete = not self.missing and not self.strangers and self.sent == self.paid
        return [
            (complete, f"Nothing is lost: {sent:,} orders in Parquet, {paid:,} in the bank's books."),
            (not self.paid_again, f"Nothing is paid twice: {self.paid_again} orders are in the books again."),
            (
                unanswered > 0 and not self.died["transport_unavailable"],
                f"Retries follow the rule: {unanswered:,} attempts did not reach the bank, and no order died of them.",
            ),
            (
                bad_rows > 0 and self.failed["validation_failure"] == bad_rows,
                f"Bad rows are not tried again: {bad_rows:,} became dead letters at their first failure.",
            ),
            (
                self.died["poison_message"] == 1,
                f"One order killed its process {poison} times and became a dead letter; no other order did.",
            ),
            (
                nothing_left and self.brought_back == died,
                f"Failures are repairable: {died:,} orders died, {self.brought_back:,} came back, {left.dead} are left.",
            ),
            (self.sound, "The data is sound: fairlead verify has read all of it."),
        ]


class Story:
    def __init__(self, orders: int, scratch: Scratch, screen: Screen) -> None:
        self.count = orders
        self.scratch = scratch
        self.screen = screen
        self.folder = scratch.path / "marketplace"
        self.outcome = Outcome()
        self.books = Books(self.folder / "books")
        self._commands = 0

    def tell(self) -> bool:
        """Whether it went as told."""
        shutil.copytree(
            EXAMPLE, self.folder, ignore=shutil.ignore_patterns("__pycache__", "books", "data", "*.parquet")
        )
        self.screen.title(
            f"{self.count:,} orders of five shops, a bank that does not always answer, and a bug"
        )
        server, metrics = self._serve()
        with fairlead.connect(self.scratch.environment["FAIRLEAD_ADDR"]) as client:
            self._ingest()
            self._work(client)
            self._look(client)
            self._repair(client)
            self.outcome.left = client.stats(QUEUE)
            self._read_metrics(metrics)
        self._stop(server, "server")
        self._audit()
        self.screen.results(SHOPS, self.outcome)
        return self.screen.verdict(self.outcome.holds)

    def _serve(self) -> tuple[subprocess.Popen[str], str]:
        self.screen.chapter(
            "A broker, and the runbook put in force",
            "One process and a directory. What it confirms is synced to disk.",
        )
        command = [
            "fairlead",
            "serve",
            "--data",
            "../data",
            "--resp",
            "127.0.0.1:0",
            "--flight",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "off",
        ]
        self.screen.typed(command)
        server = self.scratch.start("server", command, self.folder)
        addresses = self._wait_for(server, "server", r"^  resp +(\S+)\n  flight +\S+\n  http +(\S+)\n")
        self.scratch.environment["FAIRLEAD_ADDR"] = addresses[1]
        self._run("fairlead", "apply", "--yes", "runbook.toml", show=r"^\+ .*|^project .*")
        return server, f"http://{addresses[2]}/metrics"

    def _ingest(self) -> None:
        write_orders(str(self.folder / "orders.parquet"), self.count)
        self.screen.chapter(
            "Spark writes the orders into the queue, all of them or none",
            "The noisy shop comes first, with as many as the others together.",
        )
        self._run("python", "ingest.py", "orders.parquet")

    def _work(self, client: fairlead.Client) -> None:
        self.screen.chapter(
            "A worker on Spark runs the steps of the runbook on each order",
            "price makes euros of all orders of a batch, charge pays them one by one.",
            "Each shop has its turns, and what fails is tried again or dies by a rule.",
        )
        self._run_worker(client)

    def _run_worker(self, client: fairlead.Client) -> None:
        """Until everything is paid or dead. What it does can be seen in the books and at the broker, so
        nobody asks it.
        """
        command = ["fairlead", "worker", "run", "billing", "--project", "market"]
        self.screen.typed(command)
        worker = self.scratch.start("worker", command, self.folder)
        sent = {shop: self.count // 20 * twentieths for shop, (_, twentieths) in SHOPS.items()}
        moved, before = time.monotonic(), None
        with self.screen.live(sent) as view:
            while True:
                stats = client.stats(QUEUE)
                self.books.read()
                paid = {shop: len(self.books.orders.get(shop, ())) for shop in sent}
                self._note_shares(sent, paid, view.seconds)
                view.update(paid, stats)
                if not (stats.ready or stats.waiting or stats.leased):
                    break
                now = (paid, stats)
                if now != before:
                    moved, before = time.monotonic(), now
                if worker.poll() is not None or time.monotonic() - moved > _PATIENCE_S:
                    raise StoryBroken(
                        f"the worker {'ended' if worker.poll() is not None else 'stands still'}:\n{self._tail('worker')}"
                    )
                time.sleep(0.2)
        self._stop(worker, "worker")
        self.screen.said(self._tail("worker", 2))

    def _note_shares(self, sent: dict[str, int], paid: dict[str, int], seconds: float) -> None:
        for shop in sent:
            if paid[shop] >= 0.95 * sent[shop]:
                self.outcome.nearly_done_s.setdefault(shop, seconds)

    def _look(self, client: fairlead.Client) -> None:
        self.screen.chapter(
            "What died, and why",
            "Each dead letter has its failures with it, and waits for as long as it takes.",
        )
        examples: dict[str, MessageInfo] = {}
        counts: Counter[str] = Counter()
        for letter in client.peek(DEAD_LETTERS, limit=1000):
            reason = letter.reason.word if letter.reason is not None else "nothing"
            counts[reason] += 1
            examples[reason] = letter
        for reason, count in counts.most_common():
            self.screen.said(f"{count:5,}  {reason}: {examples[reason].failures[-1].error.splitlines()[0]}")
        for reason in ("validation_failure", "poison_message"):
            if reason not in examples:
                raise StoryBroken(f"no order died of {reason}")
            self._run("fairlead", "explain", QUEUE, examples[reason].id[-8:])

    def _repair(self, client: fairlead.Client) -> None:
        self.screen.chapter("The fix, and everything that died comes back")
        for name, old, new in FIXES:
            file = self.folder / name
            before = file.read_text()
            if old not in before:
                raise StoryBroken(f"{name} has changed: the fix does not fit")
            file.write_text(before.replace(old, new))
            changes = difflib.unified_diff(
                before.splitlines(), file.read_text().splitlines(), n=1, lineterm=""
            )
            self.screen.diff(name, [*changes][3:])
        printed = self._run("fairlead", "redrive", QUEUE, "--yes")
        returned = re.match(r"returned ([\d,]+) dead letter", printed)
        if returned is None:
            raise StoryBroken(f"redrive printed {printed!r}")
        self.outcome.brought_back = int(returned[1].replace(",", ""))
        self._run_worker(client)

    def _read_metrics(self, address: str) -> None:
        with urllib.request.urlopen(address, timeout=_PATIENCE_S) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            counted = {
                "fairlead_messages_failed": self.outcome.failed,
                "fairlead_messages_dead": self.outcome.died,
            }.get(family.name)
            for sample in family.samples if counted is not None else ():
                if sample.name.endswith("_total") and sample.labels["queue"] == QUEUE:
                    counted[sample.labels["reason"]] += int(sample.value)

    def _audit(self) -> None:
        """Which orders there were, and which were paid: two lists that nothing of fairlead has written."""
        rows = pq.read_table(self.folder / "orders.parquet", columns=["order", "shop"]).to_pydict()
        sent = set(zip(rows["order"], rows["shop"], strict=True))
        self.books.read()
        paid = {(order, shop) for shop, orders in self.books.orders.items() for order in orders}
        self.outcome.sent = Counter(shop for _, shop in sent)
        self.outcome.paid = Counter(shop for _, shop in paid)
        self.outcome.missing, self.outcome.strangers = len(sent - paid), len(paid - sent)
        self.outcome.paid_again = self.books.paid_again
        self.screen.chapter("The audit")
        self._run("fairlead", "verify", "../data")
        self.outcome.sound = True

    def _run(self, *command: str, show: str = r"") -> str:
        """A command that the reader could type, and the lines of its output to show."""
        self.screen.typed(command)
        self._commands += 1
        name = f"{self._commands:02}-{command[1]}"
        child = self.scratch.start(name, command, self.folder)
        self._wait_for_end(child, name)
        said = self.scratch.log(name)
        self.screen.said("\n".join(line for line in said.splitlines() if re.match(show, line)))
        return said

    def _wait_for(self, child: subprocess.Popen[str], name: str, what: str) -> re.Match[str]:
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := re.search(what, self.scratch.log(name), re.MULTILINE)):
            if child.poll() is not None or time.monotonic() > deadline:
                raise StoryBroken(f"the {name} did not start:\n{self._tail(name)}")
            time.sleep(0.05)
        return found

    def _stop(self, child: subprocess.Popen[str], name: str) -> None:
        child.send_signal(signal.SIGTERM)
        self._wait_for_end(child, name)

    def _wait_for_end(self, child: subprocess.Popen[str], name: str) -> None:
        try:
            code = child.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise StoryBroken(
                f"{name} has not ended after {_PATIENCE_S:.0f} s:\n{self._tail(name)}"
            ) from None
        if code:
            raise StoryBroken(f"{name} ended with {code}:\n{self._tail(name)}")

    def _tail(self, name: str, lines: int = 20) -> str:
        return "\n".join(self.scratch.log(name).splitlines()[-lines:])
