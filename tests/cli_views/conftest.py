from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import fairlead
from fairlead import Complete, Fail, NewMessage
from fairlead.cli.app import app

Run = Callable[..., Result]

#: For a process of its own.
COMMAND = (sys.executable, "-c", "from fairlead.cli import main; main()")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that costs no disk where the machine has one: opening RocksDB there is ten times faster."""
    fast = (
        "/dev/shm" if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 512 << 20 else None
    )
    with tempfile.TemporaryDirectory(prefix="fairlead-", dir=fast) as path:
        yield Path(path)


@pytest.fixture
def data(place: Path) -> Path:
    """Two queues with a history: `emails` has keys, failures and dead letters, `orders` has streams that are
    held up.
    """
    path = place / "data"
    with fairlead.open(path, durability="os") as broker:
        broker.create_queue(
            "emails", visibility_timeout="1h", retry={"policy": "fixed", "cooldown": "2h", "attempts": 5}
        )
        broker.create_queue("orders", retry_in_stream={"policy": "fixed", "cooldown": "2h"}, poison_after=1)
        broker.config.set("throttle:smtp:rate", 5)
        for key, weight in (("acme", 3), ("globex", 1)):
            broker.enqueue_many(
                "emails", [NewMessage(b"x" * 50, fairness_key=key, weight=weight) for _ in range(20)]
            )
        mails = broker.claim("emails", limit=8, consumer="ann")
        broker.settle([Fail(mail, error="SMTP 421", reason="transport_unavailable") for mail in mails[:4]])
        broker.settle([Fail(mails[4], dead=True), Complete(mails[5])])
        broker.enqueue_many("orders", [NewMessage(b"", stream="order-7") for _ in range(3)])
        broker.settle([Fail(order, reason="dependency_failure") for order in broker.claim("orders")])
    return path


@pytest.fixture
def run() -> Run:
    """The command with these arguments; fails the test unless it ends with this exit code."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return invoke
