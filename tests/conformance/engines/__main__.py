"""More runs than the tests make: `python -m tests.conformance.engines --runs 1000 [--first 0]`; `--record` records
the golden runs anew.
"""

from __future__ import annotations

import argparse

from rich.progress import track

from fairlead.store.kv.dictionary import DictionaryStore
from tests.conformance.engines.golden.recording import write_all
from tests.conformance.engines.test_memory_sizes import (
    run_with_chunks_made_cold,
    run_with_little_in_memory,
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.engines", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--record", action="store_true", help="record the golden runs anew")
    options = parser.parse_args()
    if options.record:
        write_all()
        return
    made_cold = 0
    for seed in track(range(options.first, options.first + options.runs), "runs"):
        run_with_little_in_memory(seed, DictionaryStore(), laws_every=20)
        made_cold += run_with_chunks_made_cold(seed, DictionaryStore(), laws_every=20)
    print(f"{options.runs} runs from seed {options.first}: the same answers with little in memory,")
    print(f"and with {made_cold} chunks that became cold")


if __name__ == "__main__":
    main()
