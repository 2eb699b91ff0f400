"""How long an enqueue waits beside a scan by filter or a view, and how fast patterns are matched.

One process, one thread that enqueues single messages with pauses, and the call that is measured in another.
Of each wait the time is taken off, in a second figure, that one of the two threads was ready to run and had no
core (the longer of both, as they overlap): on a busy machine that is most of it.
The dead letters have errors of 8,000 characters over `a` and `b`, for which the hostile pattern has as many
states as it can.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

import msgspec

import fairlead
from bench.rates import Spread, spread
from bench.run_queue import ThreadTimes
from fairlead import DeadFilter
from fairlead.errors import FairleadError

ERROR_CHARACTERS = 8_000
HOSTILE = "(a|b)*a(a|b){100}c"
AIM_MS = 50
#: A call that takes longer is ended: the waits beside it are all that is asked for.
_LONGEST_S = 10.0
_AT_LEAST_S = 1.0
_PAUSE_S = 0.001
_BATCH = 1_000
_KEYS = 100


class Plan(msgspec.Struct, frozen=True):
    dead: int = 100_000
    longest_s: float = _LONGEST_S


QUICK = Plan(dead=3_000, longest_s=2.0)


class Measured(msgspec.Struct, frozen=True):
    """Milliseconds that enqueues took during the call; `with_core_*` without the time in the run queue.
    `ended`: the call was not waited for. `load` is that of the machine when the call was over.
    """

    call: str
    enqueues: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    call_s: float
    ended: bool
    with_core_p99_ms: float = 0.0
    with_core_max_ms: float = 0.0
    call_cpu_s: float = 0.0
    load: float = 0.0


class Matched(msgspec.Struct, frozen=True):
    """Microseconds a search takes, one after the other."""

    pattern: str
    text: str
    re2: Spread
    arrow: Spread


class FilterFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    dead: int = 0
    waits: list[Measured] = []
    matches: list[Matched] = []


Call = Callable[[fairlead.Broker], object]
_REGEX = DeadFilter(error_regex=HOSTILE)
_NOTHING = DeadFilter(error="no error has this")


def _looks(some_id: str) -> dict[str, Call]:
    """Calls that change nothing."""
    dry: dict[str, Call] = {
        f"{verb} dry run, {name}": lambda broker, verb=verb, filter=filter: getattr(broker, verb)(
            "q", filter=filter, dry_run=True
        )  # type: ignore[misc]
        for verb in ("retry", "drop", "redrive")
        for name, filter in {
            "hostile pattern": _REGEX,
            "error text": _NOTHING,
            "everything": DeadFilter(),
        }.items()
    }
    dry |= {
        f"{verb} dry run, everything": lambda broker, verb=verb: getattr(broker, verb)(
            "q", filter=DeadFilter(), dry_run=True
        )  # type: ignore[misc]
        for verb in ("done", "bury", "hold", "unhold", "fail")
    }
    views: dict[str, Call] = {
        "nothing": lambda broker: sleep(1.0),
        "peek of 10,000 dead letters": lambda broker: broker.peek("q.dlq", limit=10_000),
        "failure_metrics": lambda broker: broker.failure_metrics("q.dlq"),
        "explain a message by its tail": lambda broker: broker.explain(some_id[-10:], "q.dlq"),
        "find by tail": lambda broker: broker.find(some_id[-10:], "q.dlq"),
        "stats with keys": lambda broker: broker.stats("q", keys=True),
        "browse a page": lambda broker: broker.browse("q", view="dead", limit=10_000),
        "browse_splits": lambda broker: broker.browse_splits("q", "dead", 8),
        "prune dry run": lambda broker: broker.prune("q", dry_run=True),
    }
    return views | dry


def _changes() -> dict[str, Call]:
    """In this order: each leaves enough messages to the next."""
    return {
        "retry, hostile pattern": lambda broker: broker.retry("q", filter=_REGEX),
        "redrive, hostile pattern": lambda broker: broker.redrive("q", filter=_REGEX),
        "retry, 10,000": lambda broker: broker.retry("q", filter=DeadFilter()),
        "hold, 10,000": lambda broker: broker.hold("q", filter=DeadFilter()),
        "unhold, 10,000": lambda broker: broker.unhold("q", filter=DeadFilter()),
        "bury, 10,000": lambda broker: broker.bury("q", filter=DeadFilter()),
        "drop, 10,000": lambda broker: broker.drop("q", filter=DeadFilter()),
        "drain, 10,000": lambda broker: broker.drain("q.dlq"),
        "prune, 10,000": lambda broker: broker.prune("q", older_than="0s"),
        "redrive, all that is left": lambda broker: broker.redrive("q"),
    }


def steps(plan: Plan) -> int:
    return len(_looks("")) + len(_changes()) + 1


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> FilterFigures:
    data = home / "filters"
    shutil.rmtree(data, ignore_errors=True)
    _fill(data, plan.dead)
    tick("dead letters")
    waits = []
    broker = fairlead.open(data, durability="os")
    try:
        some_id = broker.browse("q", view="dead", limit=1)[0].id
        looks = _looks(some_id)
        for name, call in (looks | _changes()).items():
            found = _beside(broker, name, call, plan, again=name in looks)
            waits.append(found)
            tick(name)
            if found.ended:
                # The scan that was left goes on until its broker is closed.
                broker.close()
                broker = fairlead.open(data, durability="os")
    finally:
        broker.close()
    shutil.rmtree(data, ignore_errors=True)
    return FilterFigures(plan.dead, waits, _matches())


def _fill(data: Path, count: int) -> None:
    rng = random.Random(14)
    with fairlead.open(data, durability="os") as broker:
        broker.create_queue("q")
        broker.create_queue("other")
        for start in range(0, count, _BATCH):
            error = "".join(rng.choices("ab", k=ERROR_CHARACTERS))
            messages = [
                fairlead.NewMessage(b"x" * 100, fairness_key=f"k{n % _KEYS}")
                for n in range(min(_BATCH, count - start))
            ]
            broker.quarantine("q", messages, reason="handler_exception", error=error)


def _beside(broker: fairlead.Broker, name: str, call: Call, plan: Plan, *, again: bool) -> Measured:
    """A short call that changes nothing is made again and again for a second."""
    over = threading.Event()

    def run() -> None:
        began = perf_counter()
        with suppress(FairleadError):
            call(broker)
            while again and perf_counter() - began < _AT_LEAST_S:
                call(broker)
        over.set()

    caller = threading.Thread(target=run, daemon=True)
    waits: list[float] = []
    with_core: list[float] = []
    began = perf_counter()
    caller.start()
    own, calling = ThreadTimes(threading.get_native_id()), ThreadTimes(caller.native_id)
    while not waits or (not over.is_set() and perf_counter() - began < plan.longest_s):
        queued = own.read().queued_s, calling.read().queued_s
        before = perf_counter()
        broker.enqueue("other", b"x" * 100)
        wait_s = perf_counter() - before
        without_core_s = max(own.read().queued_s - queued[0], calling.read().queued_s - queued[1])
        waits.append(wait_s * 1000)
        with_core.append(max(0.0, wait_s - without_core_s) * 1000)
        sleep(_PAUSE_S)
    took, call_cpu_s = perf_counter() - began, calling.read().cpu_s
    own.close()
    calling.close()
    return Measured(
        call=name,
        enqueues=len(waits),
        p50_ms=_at(waits, 0.5),
        p99_ms=_at(waits, 0.99),
        max_ms=max(waits),
        call_s=took,
        ended=not over.is_set(),
        with_core_p99_ms=_at(with_core, 0.99),
        with_core_max_ms=max(with_core),
        call_cpu_s=call_cpu_s,
        load=round(os.getloadavg()[0], 1),
    )


def _at(waits: list[float], part: float) -> float:
    return sorted(waits)[min(len(waits) - 1, int(len(waits) * part))]


def _matches() -> list[Matched]:
    """Arrow's matcher has the same RE2 inside; it takes a column at a time, and has no bound for its memory
    or program.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from fairlead.decide.error_pattern import ErrorPattern

    rng = random.Random(14)
    texts = {
        "trace": ("Traceback: connection to 10.0.0.7:5432 refused after 30s; " * 200)[:ERROR_CHARACTERS],
        "a and b": "".join(rng.choices("ab", k=ERROR_CHARACTERS)),
    }
    patterns = [
        "timeout",
        r"(?i)^timeout.*\d+s$",
        r"refused after \d+m|timed out",
        r"(x+x+)+y",
        HOSTILE,
        "a.{100}b.{100}c",
    ]
    found = []
    for pattern in patterns:
        compiled = ErrorPattern(pattern)
        for name, text in texts.items():
            one, column = (
                partial(compiled.search, text),
                partial(pc.match_substring_regex, pa.array([text] * 20), pattern),
            )
            rates = [
                spread([_microseconds(search, count) for _ in range(3)])
                for search, count in ((one, 1), (column, 20))
            ]
            found.append(Matched(pattern, name, *rates))
    return found


def _microseconds(search: Callable[[], object], texts: int) -> float:
    count, began = 0, perf_counter()
    while perf_counter() - began < 0.1:
        search()
        count += texts
    return (perf_counter() - began) / count * 1e6
