"""The doors' figures as tables, aims and notes for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median, quantiles

from bench.doors.measure import CONTENDERS, SECURED, Measured, Row
from bench.rates import Spread

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
_US, _US_ASYNC = "RESP", "RESP, asyncio"
_REDIS, _NATS = "Redis Streams", "NATS JetStream"
_TO = ("in process", _REDIS, _NATS, "NATS, acks awaited")
_NONE = "-"

INTRODUCTION = """
*Doors*: client and server are two processes on two cores, with loopback between them; *in process* has one process and no network. *RESP* is the door
that speaks the Redis protocol, with the light client, blocking and asyncio. Everyone sends the same bodies in the same
batches; what each was told and which versions ran is under *Contenders*. Shown are the median of the rounds and, in brackets, the quartiles. A ratio
is taken within a round, so 2 is twice as fast, of latencies twice as slow; where another can do the same in several ways, it is met where it is best.
*By CPU* is what the other takes for a message divided by what we take, client and server together: on a machine with neighbours it says more than
rates do, because who waits for the network loses more to them than who never sleeps.
"""


def tables(measured: Measured) -> Iterator[Table]:
    if _cases(measured, "lifecycle"):
        yield "Doors: enqueue a batch, claim it, complete it, through a server", *_lifecycles(measured)
        yield "Doors: the lifecycles of RESP beside the others'", *_ratios(measured)
        yield "Doors: CPU of a lifecycle, client + server, microseconds a message", *_cpu(measured)
    if _cases(measured, "latency"):
        yield "Doors: a single message from producer to a waiting consumer", *_latency(measured)
    if _cases(measured, "singles"):
        yield "Doors: concurrent producers sending single messages", *_singles(measured)
    if measured.secured:
        yield "Doors: RESP with keys and TLS", *_secured(measured)
    if measured.crowds:
        yield "Doors: connections that do nothing", *_crowds(measured)


def contenders(measured: Measured) -> list[str]:
    lines = []
    for durability, settings in measured.settings.items():
        lines += [f"{durability}, {name}: {said}" for name, said in settings.items()]
        lines += [
            f"{durability}, {name}: NOT THERE: {why}"
            for name, why in measured.missing.get(durability, {}).items()
        ]
    for durability, (pieces, disturbed) in measured.quiet.items():
        low, high = measured.loads.get(durability, (0.0, 0.0))
        lines.append(
            f"{durability}: {disturbed} of {pieces} pieces of work were disturbed by other work on the machine;"
            f" load {low:.1f} to {high:.1f}, a few of it ours"
        )
    return lines


def aims(measured: Measured) -> Iterator[tuple[str, float, bool]]:
    """What was aimed at, what was got, whether that is enough."""
    for durability in measured.settings:
        for group, case, name, least in (
            ("lifecycle", "1", _NATS, 1.1),
            ("lifecycle", "1", _REDIS, 0.45),
            ("lifecycle", "500", _REDIS, 1.5),
            ("singles", "10", _REDIS, 1.3),
            ("singles", "10", _NATS, 1.3),
        ):
            us, them = (_best(measured, group, durability, case, one) for one in (_US, name))
            if us is None or them is None:
                continue
            what = f"batch {case}" if group == "lifecycle" else f"{case} producers"
            aim = f"doors, {durability}, {what}: at least {least} of {name}"
            for way, got in (("", _ratio(us, them, "rate")), (", by CPU", _cpu_ratio(us, them))):
                yield f"{aim}{way}", got.median, got.median >= least
        us, them = (_best(measured, "latency", durability, "", one) for one in (_US, _NATS))
        if us is not None and them is not None:
            got = _ratio(us, them, "p50")
            yield f"doors, {durability}, p50: at most 0.8 of {_NATS}", got.median, got.median <= 0.8


def _lifecycles(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    def rate(row: Row) -> str:
        return _quartiles(row.rounds["rate"]).show(0)

    return _by_contender(measured, [f"{name}/s" for name in CONTENDERS], rate)


def _cpu(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return _by_contender(measured, CONTENDERS, _both)


def _by_contender(
    measured: Measured, names: Iterable[str], show: Callable[[Row], str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case in _cases(measured, "lifecycle"):
        found = [(name, _find(measured, "lifecycle", durability, case, name)) for name in CONTENDERS]
        shown = [show(row) if row else _missing(measured, durability, name) for name, row in found]
        rows.append((durability, case, *shown))
    return ("durability", "batch", *names), rows


def _ratios(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case in _cases(measured, "lifecycle"):
        us = _find(measured, "lifecycle", durability, case, _US)
        others = [_find(measured, "lifecycle", durability, case, name) for name in _TO]
        rates = [_ratio(us, them, "rate").show() if us and them else _NONE for them in others]
        cpu = [_cpu_ratio(us, them).show() if us and them else _NONE for them in others]
        rows.append((durability, case, *rates, *cpu))
    by_rate, by_cpu = [f"of {name}" for name in _TO], [f"of {name}, by CPU" for name in _TO]
    return ("durability", "batch", *by_rate, *by_cpu), rows


def _latency(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case, name in _everyone(measured, "latency"):
        row = _find(measured, "latency", durability, case, name)
        if row is None:
            missing = _missing(measured, durability, name)
            rows.append((durability, name, case, missing, missing, *[_NONE] * 3))
            continue
        shown = [_quartiles(row.rounds[value]).show() for value in ("p50", "p99")]
        rows.append((durability, name, case, *shown, _both(row), *_beside(measured, row, "p50")))
    return (
        "durability",
        "through",
        "waiting by",
        "p50 ms",
        "p99 ms",
        "CPU us, client + server",
        f"p50 of {_REDIS}",
        f"p50 of {_NATS}",
    ), rows


def _singles(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case, name in _everyone(measured, "singles"):
        row = _find(measured, "singles", durability, case, name)
        if row is None:
            rows.append((durability, name, case, _missing(measured, durability, name), _NONE, *[_NONE] * 4))
            continue
        rate = _quartiles(row.rounds["rate"]).show(0)
        beside = [*_beside(measured, row, "rate"), *_beside(measured, row, "CPU")]
        rows.append((durability, name, case, rate, _both(row), *beside))
    return (
        "durability",
        "through",
        "producers are",
        "messages/s",
        "CPU us, client + server",
        f"of {_REDIS}",
        f"of {_NATS}",
        f"of {_REDIS}, by CPU",
        f"of {_NATS}, by CPU",
    ), rows


def _beside(measured: Measured, row: Row, value: str) -> list[str]:
    """A row of ours beside the others."""
    if row.contender not in (_US, _US_ASYNC):
        return [_NONE] * 2
    others = [_best(measured, row.group, row.durability, row.case, name) for name in (_REDIS, _NATS)]
    if value == "CPU":
        return [_cpu_ratio(row, them).show() if them else _NONE for them in others]
    return [_ratio(row, them, value).show() if them else _NONE for them in others]


def _secured(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    plain = {row.case: row for row in measured.secured if row.contender == "neither"}
    for row in measured.secured:
        rate = _quartiles(row.rounds["rate"]).show(0)
        of_plain = _cpu_ratio(plain[row.case], row).show()
        rows.append((row.case, row.contender, rate, _both(row), of_plain))
    order = [*SECURED]
    rows.sort(key=lambda row: (int(row[0].replace(",", "")), order.index(row[1])))
    return ("batch", "with", "lifecycles/s", "CPU us, client + server", "CPU of neither"), rows


def _crowds(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = [
        (
            "claims that wait" if crowd.waited else "idle connections",
            f"{crowd.connections:,}",
            f"{crowd.kb_each:.1f}",
            str(crowd.threads - crowd.threads_before),
            f"{crowd.seconds:.2f}",
        )
        for crowd in measured.crowds
    ]
    return ("what", "how many", "KB of memory each", "threads more", "all answered within s"), rows


def _both(row: Row) -> str:
    sides = ("client_us",) if row.contender == "in process" else ("client_us", "server_us")
    return " + ".join(f"{median(row.rounds[side]):,.1f}" for side in sides)


def _cases(measured: Measured, group: str) -> list[tuple[str, str]]:
    return [*dict.fromkeys((row.durability, row.case) for row in measured.rows if row.group == group)]


def _everyone(measured: Measured, group: str) -> Iterable[tuple[str, str, str]]:
    """Every row there is, and one for everybody who could not come."""
    for durability in dict.fromkeys(durability for durability, _ in _cases(measured, group)):
        for name in CONTENDERS:
            cases = [row.case for row in _rows_of(measured, group, durability, name)]
            if name in measured.missing.get(durability, {}):
                cases = [_NONE]
            yield from ((durability, case, name) for case in cases)


def _rows_of(measured: Measured, group: str, durability: str, contender: str) -> list[Row]:
    wanted = (group, durability, contender)
    return [row for row in measured.rows if (row.group, row.durability, row.contender) == wanted]


def _find(measured: Measured, group: str, durability: str, case: str, contender: str) -> Row | None:
    rows = _rows_of(measured, group, durability, contender)
    return next((row for row in rows if row.case == case), None)


def _missing(measured: Measured, durability: str, name: str) -> str:
    return "not there" if name in measured.missing.get(durability, {}) else _NONE


def _best(measured: Measured, group: str, durability: str, case: str, name: str) -> Row | None:
    """The way in which a contender does a thing best: a batch the only way, a number of producers by threads or tasks, a
    wait by claim or by consume.
    """
    names = (_US, _US_ASYNC) if name == _US and group != "lifecycle" else (name,)
    rows = [row for one in names for row in _rows_of(measured, group, durability, one)]
    if group == "latency":
        return min(rows, key=lambda row: median(row.rounds["p50"]), default=None)
    number = case.partition(" ")[0]
    rows = [row for row in rows if row.case.partition(" ")[0] == number]
    return max(rows, key=lambda row: median(row.rounds["rate"]), default=None)


def _ratio(us: Row, them: Row, value: str) -> Spread:
    return _quartiles([a / b for a, b in zip(us.rounds[value], them.rounds[value], strict=True)])


def _cpu_ratio(us: Row, them: Row) -> Spread:
    """How many times as much the other takes."""
    ours, theirs = _cpu_of(us), _cpu_of(them)
    return _quartiles([b / a for a, b in zip(ours, theirs, strict=True)])


def _cpu_of(row: Row) -> list[float]:
    return [
        client + server
        for client, server in zip(row.rounds["client_us"], row.rounds["server_us"], strict=True)
    ]


def _quartiles(values: Sequence[float]) -> Spread:
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)
