"""Types the console blocks of a page, in terminals that may have a name, and holds what is printed to what
the page shows.

In a terminal that is called `again` a command is typed until it shows what the page does: for what takes its
time. A page shows lists as a terminal cuts them, and they are printed to a pipe here, which gets them whole.

A page speaks of the usual ports; here they are free ones, said to `fairlead serve` and to commands by the
environment. Ids of the page stand for the real ones that were printed in their place, so a command may name a
message that the page showed. The reader's folder is `/path/to/folder`, and the clone `/path/to/fairlead`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.testing.server import free_ports
from tests.docs.pages import ROOT, Session

#: Generous: a loaded machine is slow, and a wait that is over early costs nothing.
PATIENCE_S = 300.0
_AGAIN = "again"

_ID = re.compile(r"\b[0-9a-f]{8}(?:(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?\b")
_VARYING = (
    (_ID, "ID"),  # before durations: a part of one may be 6d2d
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r"\b(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+\b"), "DURATION"),
    (re.compile(r"\b(pid|calls_in_flight)=\d+"), r"\1=N"),
    (re.compile(r"\bfl_[a-z2-7]{12}_[A-Za-z0-9_-]{43}"), "SECRET"),
    # Ids of API keys, where they stand: a word of twelve letters may be any word.
    (
        re.compile(
            r"(?<=key )[a-z2-7]{12}(?= ')|(?<=replaces )[a-z2-7]{12}\b|(?<=TIME  )[a-z2-7]{12}\b|^[a-z2-7]{12}(?=  )"
        ),
        "KEY",
    ),
    (re.compile(r"(?<=@)[\w.-]+:\d+:[0-9a-f]{6}\b"), "PROCESS"),
    (re.compile(r"\bipv4:127\.0\.0\.1:\d+"), "CALLER"),
    (re.compile(r"[ ─━]+"), " "),
)


def alike(line: str) -> str:
    """Without what differs from run to run: ids, moments, durations, and the padding that goes with them."""
    for pattern, name in _VARYING:
        line = pattern.sub(name, line)
    return line.strip()


def shows(shown: str, printed: str) -> bool:
    """A page shows a line as a terminal cuts it: `…` stands for the rest of a cell, which a pipe gets whole."""
    pattern = ".*".join(re.escape(part) for part in alike(shown).split("…"))
    return re.fullmatch(pattern, alike(printed)) is not None


class Terminals:
    """All terminals of one reader, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = dict(zip(("5554", "5555", "5556", "5557"), map(str, free_ports(4)), strict=True))
        self._ids: dict[str, str] = {}
        self._named: dict[str, Running] = {}
        resp, grpc, flight, http = (f"127.0.0.1:{port}" for port in self._ports.values())
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")
        } | {
            "FAIRLEAD_ADDR": resp,
            "FAIRLEAD_RESP": resp,
            "FAIRLEAD_FLIGHT": flight,
            "FAIRLEAD_GRPC": grpc,
            "FAIRLEAD_HTTP": http,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "100",
            "PYTHONUNBUFFERED": "1",
        }

    def real(self, text: str) -> str:
        """As the reader would have to type it here."""
        return _replace_words(_replace_words(text, self._ports), self._ids).replace(
            "/path/to/fairlead", str(ROOT)
        )

    def follow(self, session: Session) -> None:
        for typed, shown in _typed_and_shown(session.text):
            if not session.terminal:
                self._run(typed, shown)
            elif session.terminal == _AGAIN:
                self._run_again(typed, shown)
            else:
                self._go_on(session.terminal, typed, shown)

    def close(self) -> None:
        for running in self._named.values():
            running.end()

    def _run(self, command: str, shown: Sequence[str]) -> None:
        ran = subprocess.run(
            ["bash", "-c", self.real(command)],
            cwd=self.folder,
            env=self._environment,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed = self._as_in_the_page(ran.stdout)
        assert _find(shown, printed) == len(printed), f"$ {command}\n{ran.stdout}"
        self._learn_ids(shown, printed)

    def _run_again(self, command: str, shown: Sequence[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._run(command, shown)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _go_on(self, name: str, typed: str, shown: Sequence[str]) -> None:
        if typed == "^C":
            self._named[name].interrupt()
        elif typed:
            self._named[name] = Running(
                ["bash", "-c", f"exec {self.real(typed)}"], self.folder, self._environment
            )
        running = self._named[name]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = running.read_to_its_end()
            printed = self._as_in_the_page("".join(running.printed))[running.seen :]
            end = _find(shown, printed)
            if end is not None:
                running.seen += end
                return
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"{name}: {typed}\nexpected\n{shown}\ngot\n{printed}")
            running.wait_for_more(deadline)

    def _as_in_the_page(self, printed: str) -> list[str]:
        usual_ports = {real: usual for usual, real in self._ports.items()}
        return _replace_words(printed.replace(str(self.folder), "/path/to/folder"), usual_ports).splitlines()

    def _learn_ids(self, shown: Sequence[str], printed: Sequence[str]) -> None:
        if "..." not in shown:
            for before, now in zip(shown, printed, strict=True):
                self._ids.update(zip(_ID.findall(before), _ID.findall(now), strict=True))


class Running:
    """A command that goes on, and what it has printed so far."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.printed: list[str] = []
        #: Lines that blocks of the page have shown.
        self.seen = 0
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def interrupt(self) -> None:
        """Whatever a page lets its reader interrupt ends in order."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0, self.printed

    def read_to_its_end(self) -> bool:
        return not self._reader.is_alive()

    def wait_for_more(self, deadline: float) -> None:
        with self._changed:
            self._changed.wait(max(0.0, min(0.2, deadline - time.monotonic())))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                with self._changed:
                    self.printed.append(line)
                    self._changed.notify_all()


def _typed_and_shown(text: str) -> list[tuple[str, list[str]]]:
    """A block may begin with output, which is then more of what its terminal prints."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ ") or line == "^C":
            found.append((line.removeprefix("$ "), []))
        else:
            if not found:
                found.append(("", []))
            found[-1][1].append(line)
    return found


def _find(shown: Sequence[str], printed: Sequence[str]) -> int | None:
    """How many printed lines it takes to see what is shown, from the first one on; `...` stands for any
    lines, also none.
    """
    if not shown:
        return 0
    if shown[0] == "...":
        ends = (_find(shown[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
        return (
            next((skipped + end for skipped, end in enumerate(ends) if end is not None), None)
            if shown[1:]
            else len(printed)
        )
    if not printed or not shows(shown[0], printed[0]):
        return None
    end = _find(shown[1:], printed[1:])
    return None if end is None else end + 1


def _replace_words(text: str, words: Mapping[str, str]) -> str:
    if not words:
        return text
    return re.sub(
        "|".join(rf"\b{re.escape(word)}\b" for word in sorted(words, key=len, reverse=True)),
        lambda found: words[found[0]],
        text,
    )
