"""A contender of `bench.turns`, in a process of its own: `python -P bench/in_turn.py CASE BATCH KEYS`.

It stays open. For each line on its standard input, a number of messages, it enqueues, claims and completes so many and
prints the CPU microseconds that the whole process took for one. It imports nothing but what an older checkout of
fairlead has too; for the contender `bare` that is `bench/bare.py` beside it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

PAYLOAD_BYTES = 1024
_BUCKETS = 4
_DELAY_MS = 1000

#: The fields that the n-th message has beside its payload and its key.
FIELDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "streams": lambda n: {"stream": f"s{n}"},
    "throttled": lambda n: {"throttle_keys": (f"t{n % _BUCKETS}",)},
    "dedup": lambda n: {"dedup_key": f"d{n}"},
    "delay": lambda n: {"delay": "1s"},
}
CASES = ("plain", *FIELDS, "fail and retry")

#: Works through so many messages, of which the first has that number.
Work = Callable[[int, int], None]


@contextmanager
def engine_work(case: str, batch: int, keys: int, home: str) -> Iterator[Work]:
    import fairlead
    from fairlead import Complete, Fail, NewMessage
    from fairlead.testing import ManualClock
    from fairlead.verbs.claim import Claim
    from fairlead.verbs.config import ConfigSet
    from fairlead.verbs.enqueue import Enqueue, EnqueueMany
    from fairlead.verbs.settle import Settle

    payload, fields = os.urandom(PAYLOAD_BYTES), FIELDS.get(case)
    clock = ManualClock() if case == "delay" else None
    options: dict[str, Any] = {} if clock is None else {"clock": clock}
    with fairlead.open(home, durability="os", **options) as broker:
        do: Any = broker.do
        broker.create_queue("q", visibility_timeout="10m")
        for bucket in range(_BUCKETS):
            # So fast that no message waits: the cost of tokens counts, and not the time between them.
            do(ConfigSet(f"throttle:t{bucket}:rate", "1000000000"))

        def claim() -> Any:
            found = do(Claim("q", batch))
            if len(found) != batch:
                raise AssertionError(f"expected {batch} deliveries, got {len(found)}")
            return found

        def work(start: int, count: int) -> None:
            for first in range(start, start + count, batch):
                if batch == 1:
                    more = {} if fields is None else fields(first)
                    do(Enqueue("q", payload, fairness_key=f"k{first % keys}", **more))
                elif fields is None:
                    numbers = range(first, first + batch)
                    do(EnqueueMany("q", [NewMessage(payload, fairness_key=f"k{n % keys}") for n in numbers]))
                else:
                    drafts = [
                        NewMessage(payload, fairness_key=f"k{n % keys}", **fields(n))
                        for n in range(first, first + batch)
                    ]
                    do(EnqueueMany("q", drafts))
                if clock is not None:
                    clock.advance(ms=_DELAY_MS)
                if case == "fail and retry":
                    do(Settle([Fail(delivery, "bench") for delivery in claim()]))
                do(Settle([Complete(delivery) for delivery in claim()]))

        yield work


@contextmanager
def bare_work(batch: int, home: str) -> Iterator[Work]:
    from bench.bare import Bare

    body = os.urandom(PAYLOAD_BYTES)
    with Bare(Path(home), synced=False) as bare:

        def work(start: int, count: int) -> None:
            # Ids as an engine has them: in order, of 16 bytes.
            ids = [b"bare ids" + number.to_bytes(8, "big") for number in range(start, start + count)]
            bare.lifecycles(ids, [body] * count, batch)

        yield work


def main() -> None:
    case, batch, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory(prefix="fairlead-turns-", ignore_cleanup_errors=True) as home:
        data = f"{home}/data"
        with bare_work(batch, data) if case == "bare" else engine_work(case, batch, keys, data) as work:
            start = 0
            for line in sys.stdin:
                count = int(line)
                began = process_time()
                work(start, count)
                print((process_time() - began) / count * 1e6, flush=True)
                start += count


if __name__ == "__main__":
    main()
