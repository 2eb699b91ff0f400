"""The command line over a data directory: `cli(...)` runs a command, `broker()` opens the same directory
between two.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fairlead
from fairlead import Broker, Fail, NewMessage
from fairlead.cli.app import app

_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> Any:
        return json.loads(self.err)["error"]


@dataclass(frozen=True)
class Commands:
    """Runs commands on one data directory; `ok` demands success and nothing on stderr."""

    data: Path

    def __call__(
        self, *args: str | Path, input: str | bytes | None = None, env: dict[str, str | None] | None = None
    ) -> Ran:
        given: dict[str, str | None] = {"FAIRLEAD_DATA": str(self.data), "FAIRLEAD_ADDR": None, **(env or {})}
        result = CliRunner(env=given).invoke(
            app, [str(arg) for arg in args], input=input, catch_exceptions=False
        )
        return Ran(result.exit_code, result.stdout, result.stderr)

    def ok(self, *args: str | Path, input: str | bytes | None = None) -> Ran:
        ran = self(*args, input=input)
        assert (ran.code, ran.err) == (0, ""), ran.err
        return ran

    def json(self, *args: str | Path) -> Any:
        return self.ok(*args, "-o", "json").json()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Where opening RocksDB is quick, if the machine has such a place."""
    if not _IN_MEMORY.is_dir() or shutil.disk_usage(_IN_MEMORY).free < _ROOM_BYTES:
        yield tmp_path / "data"
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-", dir=_IN_MEMORY) as path:
        yield Path(path) / "data"


@pytest.fixture
def cli(data: Path) -> Commands:
    return Commands(data)


Opener = Callable[[], AbstractContextManager[Broker]]


@pytest.fixture
def broker(data: Path) -> Opener:
    return lambda: fairlead.open(data, durability="os")


@dataclass(frozen=True)
class Orders:
    """The ids of a queue `orders` with messages of every status, all of which failed once where they failed
    at all.
    """

    pending: str
    delayed: str
    held: str
    active: str
    failed: str
    dead: str


@pytest.fixture
def orders(broker: Opener) -> Orders:
    with broker() as opened:
        opened.create_queue("orders", retry={"policy": "fixed", "cooldown": "1h", "attempts": 5})
        failed, dead, active = opened.enqueue_many(
            "orders", [NewMessage(word, fairness_key="acme") for word in (b"failed", b"dead", b"active")]
        )
        first, second, _ = opened.claim("orders", limit=3, consumer="ann")
        opened.settle(
            [
                Fail(first, error="SMTP 421", reason="transport_unavailable"),
                Fail(second, error="bad json", reason="serialization_error", dead=True),
            ]
        )
        delayed = opened.enqueue("orders", b"delayed", delay="1h")
        held = opened.enqueue("orders", b"held")
        opened.hold("orders", [held])
        pending = opened.enqueue("orders", b"pending", headers={"shop": "globex"}, fairness_key="globex")
    return Orders(pending, delayed, held, active, failed, dead)
