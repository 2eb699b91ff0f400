"""Strangers for as long as you like: `python -m tests.hostile --seconds 600`, or one again: `--seed N`,
`--replay FILE`.

Half of the time goes to the code that reads what strangers send, target after target, with the help of
coverage; half to a live server's four ports, with random strangers by seed. A finding is kept in
`tests/hostile/findings/`, where `make test` finds it.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fairlead
from fairlead import Broker
from fairlead.testing import open_in_memory
from fairlead.testing.server import ServerProcess, run_server
from tests.hostile import fuzz, strangers, targets
from tests.hostile.conftest import UNFORESEEN

FINDINGS = Path(__file__).parent / "findings"
#: How long one target, or the live server, is at it before the next has its turn.
TURN_S = 30.0
#: A guided process that hangs is a finding, too.
_MOST_TURN_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="do the live strangers of this seed again, and nothing else")
    parser.add_argument("--replay", type=Path, help="run a file of findings/ again")
    parser.add_argument("--corpus", type=Path, help="a directory to keep what was learnt in, from run to run")
    parser.add_argument("--only", choices=[*targets.TARGETS, "live"], help="nothing but this")
    given = parser.parse_args()
    if given.replay is not None:
        targets.run(given.replay.name.partition("-")[0], given.replay.read_bytes())
        return
    with (
        tempfile.TemporaryDirectory() as scratch,
        run_server(Path(scratch) / "data", grpc=True, http=True, settings={"durability": "os"}) as server,
        open_in_memory() as broker,
    ):
        if given.seed is not None:
            _live(given.seed, server, broker)
            return
        found = _in_turns(given.seconds, given.corpus or Path(scratch) / "corpus", given.only, server, broker)
        code = server.stop()
        complaints = [line for line in server.log.splitlines() if any(words in line for words in UNFORESEEN)]
        print(
            f"the server ended with {code}, {len(complaints)} complaints in its log",
            *complaints[:10],
            sep="\n",
        )
        print(f"{len(found)} findings", *found, sep="\n  ")
        raise SystemExit(bool(code or complaints or found))


def _in_turns(
    seconds: float, corpus: Path, only: str | None, server: ServerProcess, broker: Broker
) -> list[str]:
    seed = random.randrange(1 << 40)
    until, found = time.monotonic() + seconds, list[str]()
    names = [only] if only else [name for target in targets.TARGETS for name in (target, "live")]
    turn_s = max(2.0, min(TURN_S, seconds / len(names)))
    turns = 0
    while time.monotonic() < until:
        name = names[turns % len(names)]
        turns += 1
        ends = min(until, time.monotonic() + turn_s)
        if name == "live":
            first = seed
            try:
                while time.monotonic() < ends:
                    _live(seed, server, broker)
                    seed += 1
                with fairlead.connect(server.address) as client:
                    client.queues()
            except AssertionError as finding:
                found.append(str(finding))
                seed += 1
            told = f"seeds {first} to {seed - 1}"
        else:
            told, finding = _guided(name, max(1, round(ends - time.monotonic())), corpus / name)
            found += [finding] if finding else []
        print(
            f"{max(0, until - time.monotonic()):5.0f} s left  {name:<10} {told}  ({len(found)} findings)",
            flush=True,
        )
    return found


def _live(seed: int, server: ServerProcess, broker: Broker) -> None:
    strange: list[Callable[[], None]] = [
        lambda: fuzz.live(seed, server.addresses["flight"]),
        lambda: strangers.fila(seed, server.addresses["grpc"]),
        lambda: strangers.http(seed, server.addresses["http"]),
        lambda: strangers.resp(seed, server.addresses["resp"]),
        lambda: strangers.noise(seed, server.addresses["resp"]),
        lambda: strangers.noise(seed, server.addresses["flight"]),
        lambda: strangers.noise(seed, server.addresses["grpc"]),
        lambda: fuzz.decoders(seed, broker),
    ]
    for one in strange:
        one()


def _guided(name: str, seconds: int, corpus: Path) -> tuple[str, str]:
    """What it did, and what it found; the second is empty when it found nothing."""
    before = set(FINDINGS.iterdir())
    command = [sys.executable, "-m", "tests.hostile.guided", name, str(seconds), str(corpus), str(FINDINGS)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds + _MOST_TURN_S
        )
    except subprocess.TimeoutExpired:
        return "hung", f"{name}: a process that hung"
    runs = next(
        (line.rpartition(" ")[2] for line in done.stderr.splitlines() if "number_of_executed_units" in line),
        "?",
    )
    if done.returncode == 0:
        return f"{runs} runs, {len(list(corpus.iterdir()))} inputs of interest", ""
    fresh = sorted(path.name for path in set(FINDINGS.iterdir()) - before)
    why = next(
        (line for line in done.stderr.splitlines() if "AssertionError" in line),
        done.stderr.strip().splitlines()[-1:],
    )
    return f"{runs} runs", f"{', '.join(fresh) or name}: {str(why)[:300]}"


if __name__ == "__main__":
    main()
