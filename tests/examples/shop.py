"""The shop of examples/shop in a folder of its own, used as its reader would: with the command, in processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT

#: Generous: a condition that comes true ends the wait at once.
PATIENCE_S = 90.0
EXAMPLE = ROOT / "examples" / "shop"
QUEUE = "shop/orders"

#: As it is installed: unlike `python -c`, it does not look for modules in the folder it is used in.
_FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))


class Shop:
    """`where` are the options that name a server or a directory. `cooldown` replaces the one of the runbook."""

    def __init__(self, folder: Path, *where: str, cooldown: str = "") -> None:
        self.folder = shutil.copytree(
            EXAMPLE,
            folder,
            ignore=shutil.ignore_patterns("__pycache__", "data", "bank.json", "mails.txt", "taken"),
        )
        self.where = where
        if cooldown:
            self.edit("runbook.toml", 'cooldown = "5s"', f'cooldown = "{cooldown}"')

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.folder / file).read_text()
        assert old in text
        (self.folder / file).write_text(text.replace(old, new))

    def run(self, *arguments: str, code: int = 0, cwd: Path | None = None, **environment: str) -> str:
        ran = subprocess.run(
            [_FAIRLEAD, *self.where, *arguments],
            cwd=cwd or self.folder,
            env=environment_for(**environment),
            text=True,
            check=False,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        assert ran.returncode == code, f"{arguments} ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stdout if not code else ran.stderr

    def ask(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self.run("-o", "json", *arguments, **options))

    def push(self, customer: str, amount: str, *options: str) -> str:
        found = self.ask(
            "queue", "push", QUEUE, json.dumps({"customer": customer, "amount": amount}), *options
        )
        return str(found["id"])

    def burst(self, worker: str) -> dict[str, Any]:
        """What it did."""
        (row,) = self.ask("worker", "run", worker, "--burst", "--project", "shop")["workers"]
        return dict(row)

    def messages(self) -> dict[str, dict[str, Any]]:
        """All there is to know of each, by id."""
        return {message["id"]: message for message in self.ask("queue", "show", QUEUE)["messages"]}

    def paid(self) -> list[list[Any]]:
        return list(json.loads((self.folder / "bank.json").read_text())["paid"].values())

    def mails(self) -> list[str]:
        return (self.folder / "mails.txt").read_text().splitlines()


class Working:
    """`fairlead worker run` in the folder of a shop, until it is told to stop."""

    def __init__(self, shop: Shop, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [_FAIRLEAD, *shop.where, "-o", "json", "worker", "run", *arguments, "--project", "shop"],
            cwd=shop.folder,
            text=True,
            env=environment_for(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Working:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    def has_said(self, words: str) -> bool:
        return any(words in line for line in self.log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and what it printed on stdout."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        return self.process.wait(PATIENCE_S), out

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)


def environment_for(**more: str) -> dict[str, str]:
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("FAIRLEAD_", "PYTHONPATH"))
    }
    return {**plain, "PYTHONDONTWRITEBYTECODE": "1", **more}


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)
    return found
