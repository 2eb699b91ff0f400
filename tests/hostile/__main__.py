"""Random strangers for as long as you like: `python -m tests.hostile --seconds 60`, or one again: `--seed N`."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from fairlead.broker.broker import Broker
from fairlead.store.memory import MemoryStore
from fairlead.testing.server import run_server
from tests.hostile import fuzz
from tests.hostile.conftest import UNFORESEEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="do this one again, and nothing else")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as data,
        run_server(Path(data) / "data", settings={"durability": "os"}) as server,
        Broker(MemoryStore()) as broker,
    ):
        if given.seed is not None:
            fuzz.decoders(given.seed, broker)
            fuzz.live(given.seed, server.address)
            return
        first = seed = random.randrange(1 << 40)
        until = time.monotonic() + given.seconds
        while time.monotonic() < until:
            fuzz.live(seed, server.address)
            for _ in range(20):
                fuzz.decoders(seed, broker)
                seed += 1
        code = server.stop()
        complaints = [line for line in server.log.splitlines() if any(words in line for words in UNFORESEEN)]
        print(f"seeds {first} to {seed - 1}: the server ended with {code}, {len(complaints)} complaints in its log", *complaints[:10], sep="\n")
        raise SystemExit(bool(code or complaints))


if __name__ == "__main__":
    main()
