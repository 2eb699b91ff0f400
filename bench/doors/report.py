"""The doors' figures as tables, aims and notes for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from bench.doors.measure import CONTENDERS, Measured, Row
from bench.rates import ratio, spread

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
_US = "Flight"
_ENGINE, _REDIS, _NATS = "in process", "Redis Streams", "NATS JetStream"
_TO = (_ENGINE, _REDIS, _NATS)
_NONE = "-"

INTRODUCTION = """
*Doors*: client and server are two processes on two cores, with loopback between them; *in process* has one process and no network. Everyone sends
the same bodies in the same batches; what each was told and which versions ran is under *Contenders*. A ratio sets the Flight door beside another in
the same round; where another can do the same in several ways, beside the one it does best. A piece of work during which others used more than a
quarter of a core is done again, because beside other work a process that never sleeps loses more than two that take turns: the ratio to *in process*
would flatter the doors.
"""


def tables(measured: Measured) -> Iterator[Table]:
    if not measured.rows:
        return
    yield "Doors: enqueue a batch, claim it, complete it, through a server", *_lifecycles(measured)
    yield "Doors: the Flight door's lifecycles beside the others'", *_ratios(measured)
    yield "Doors: CPU of a lifecycle, client + server, microseconds a message", *_cpu(measured)
    yield "Doors: a single message from producer to a waiting consumer", *_latency(measured)
    yield "Doors: 10 concurrent producers sending single messages", *_singles(measured)


def contenders(measured: Measured) -> list[str]:
    lines = []
    for durability, settings in measured.settings.items():
        lines += [f"{durability}, {name}: {said}" for name, said in settings.items()]
        lines += [
            f"{durability}, {name}: NOT THERE: {why}"
            for name, why in measured.missing.get(durability, {}).items()
        ]
    for durability, (pieces, disturbed) in measured.quiet.items():
        lines.append(
            f"{durability}: {disturbed} of {pieces} pieces of work were disturbed by other work on the machine"
        )
    return lines


def aims(measured: Measured) -> Iterator[tuple[str, float, bool]]:
    """What was aimed at, what was got, whether that is enough."""
    for row in measured.rows:
        if row.contender != _US:
            continue
        if row.group == "lifecycle" and row.case == "500":
            for name, least in ((_ENGINE, 0.5), (_REDIS, 2.0)):
                got = _of(measured, row, name)
                if got is not None:
                    yield f"doors, {row.durability}, batch 500: at least {least} of {name}", got, got >= least
        if row.group == "latency" and (got := _of(measured, row, _NATS)) is not None:
            yield f"doors, {row.durability}, p50 by {row.case}: not above {_NATS}'s", got, got <= 1.0


def _lifecycles(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case in _cases(measured, "lifecycle"):
        rows.append(
            (
                durability,
                case,
                *(_shown(measured, "lifecycle", durability, case, name, "rate", 0) for name in CONTENDERS),
            )
        )
    return ("durability", "batch", *(f"{name}/s" for name in CONTENDERS)), rows


def _ratios(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case in _cases(measured, "lifecycle"):
        rows.append(
            (
                durability,
                case,
                *(_ratio(measured, "lifecycle", durability, case, name, "rate") for name in _TO),
            )
        )
    return ("durability", "batch", *(f"of {name}" for name in _TO)), rows


def _cpu(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case in _cases(measured, "lifecycle"):
        found = {name: _find(measured, "lifecycle", durability, case, name) for name in CONTENDERS}
        rows.append(
            (
                durability,
                case,
                *(_both(row) if row else _missing(measured, durability, name) for name, row in found.items()),
            )
        )
    return ("durability", "batch", *CONTENDERS), rows


def _both(row: Row) -> str:
    sides = ("client_us",) if row.contender == _ENGINE else ("client_us", "server_us")
    return " + ".join(f"{median(row.rounds[side]):,.1f}" for side in sides)


def _latency(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case, name in _everyone(measured, "latency"):
        row = _find(measured, "latency", durability, case, name)
        if row is None:
            rows.append(
                (durability, name, case, *[_missing(measured, durability, name)] * 2, *[_NONE] * len(_TO))
            )
            continue
        ratios = [
            _ratio(measured, "latency", durability, case, other, "p50") if name == _US else _NONE
            for other in _TO
        ]
        rows.append(
            (
                durability,
                name,
                case,
                spread(row.rounds["p50"]).show(),
                spread(row.rounds["p99"]).show(),
                *ratios,
            )
        )
    return (
        "durability",
        "through",
        "waiting by",
        "p50 ms",
        "p99 ms",
        *(f"p50 of {name}" for name in _TO),
    ), rows


def _singles(measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = []
    for durability, case, name in _everyone(measured, "singles"):
        shown = _shown(measured, "singles", durability, case, name, "rate", 0)
        row = _find(measured, "singles", durability, case, name)
        cpu = _both(row) if row else _NONE
        ratios = [
            _ratio(measured, "singles", durability, case, other, "rate") if name == _US else _NONE
            for other in _TO
        ]
        rows.append((durability, name, case, shown, cpu, *ratios))
    return (
        "durability",
        "through",
        "producers are",
        "messages/s",
        "CPU us, client + server",
        *(f"of {name}" for name in _TO),
    ), rows


def _cases(measured: Measured, group: str) -> Iterable[tuple[str, str]]:
    return dict.fromkeys((row.durability, row.case) for row in measured.rows if row.group == group)


def _everyone(measured: Measured, group: str) -> Iterable[tuple[str, str, str]]:
    """Every row there is, and one for everybody who could not come."""
    for durability in measured.settings:
        for name in CONTENDERS:
            cases = [
                row.case
                for row in measured.rows
                if (row.group, row.durability, row.contender) == (group, durability, name)
            ]
            if name in measured.missing.get(durability, {}):
                cases = [_NONE]
            yield from ((durability, case, name) for case in cases)


def _find(measured: Measured, group: str, durability: str, case: str, contender: str) -> Row | None:
    wanted = (group, durability, case, contender)
    return next(
        (row for row in measured.rows if (row.group, row.durability, row.case, row.contender) == wanted), None
    )


def _shown(
    measured: Measured, group: str, durability: str, case: str, name: str, value: str, digits: int
) -> str:
    row = _find(measured, group, durability, case, name)
    return spread(row.rounds[value]).show(digits) if row else _missing(measured, durability, name)


def _missing(measured: Measured, durability: str, name: str) -> str:
    return "not there" if name in measured.missing.get(durability, {}) else _NONE


def _ratio(measured: Measured, group: str, durability: str, case: str, other: str, value: str) -> str:
    us, them = _find(measured, group, durability, case, _US), _best(measured, group, durability, case, other)
    return ratio(us.rounds[value], them.rounds[value]).show() if us and them else _NONE


def _of(measured: Measured, us: Row, other: str) -> float | None:
    value = "p50" if us.group == "latency" else "rate"
    them = _best(measured, us.group, us.durability, us.case, other)
    return ratio(us.rounds[value], them.rounds[value]).median if them else None


def _best(measured: Measured, group: str, durability: str, case: str, name: str) -> Row | None:
    """Batches are compared with the same batch; ways of waiting and of being concurrent with the best of
    them.
    """
    if group == "lifecycle":
        return _find(measured, group, durability, case, name)
    rows = [
        row
        for row in measured.rows
        if (row.group, row.durability, row.contender) == (group, durability, name)
    ]
    if group == "latency":
        return min(rows, key=lambda row: median(row.rounds["p50"]), default=None)
    return max(rows, key=lambda row: median(row.rounds["rate"]), default=None)
