"""The server is stopped and started again while workers work."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from fairlead import Complete, NewMessage
from fairlead.client.client import Client
from fairlead.testing import ServerProcess

from .processes import ClientProcess, until

TOTAL = 300
WORKERS = 3


def test_workers_go_on_through_restarts_and_nothing_runs_twice(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    journal = tmp_path / "work.txt"
    client.create_queue("q", visibility_timeout="60s")
    client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(TOTAL)])
    (held,) = client.claim("q")
    expected = Counter(str(n) for n in range(TOTAL)) - Counter([held.payload.decode()])

    def worked() -> Counter[str]:
        return Counter(line.split()[1] for line in journal.read_text().splitlines()) if journal.exists() else Counter()

    with ExitStack() as stack:
        workers = [
            stack.enter_context(ClientProcess("work", address=server.address, queue="q", journal=str(journal), name=f"w{n}")) for n in range(WORKERS)
        ]
        for worker in workers:
            assert worker.hear() == "ready"
        for restart in (1, 2):
            until(lambda restart=restart: worked().total() >= restart * TOTAL // 4, "a part of the work being done")  # type: ignore[misc]
            server.terminate()
            assert server.wait() == 0
            server.restart()
        until(lambda: worked().total() >= expected.total(), "the work being done")
        for worker in workers:
            worker.finish()
    assert worked() == expected
    stats = client.stats("q")
    assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, 0, 1, 0)
    assert client.settle([Complete(held)])[0].outcome == "completed"
