"""Figures as tables, as JSON, and as docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench import backlog, census, filters, hooks, lifecycle, streams, worker
from bench.conditions import FIRST_ENGINE, Conditions
from bench.doors import measure as doors
from bench.doors import report as doors_report
from bench.spark import measure as spark
from bench.spark import worker as spark_worker

#: From here on the page is written by hand and kept when the figures are written anew.
_BY_HAND = "## What limits it"


class Figures(msgspec.Struct, omit_defaults=True):
    """Each group carries the conditions it was measured under, because one may be measured again without the
    others.
    """

    quick: bool = False
    conditions: dict[str, Conditions] = {}
    in_step: list[lifecycle.Measured] = []
    drain: list[lifecycle.Measured] = []
    backlog: list[backlog.Measured] = []
    hooks: list[hooks.Measured] = []
    streams: list[streams.Measured] = []
    filters: filters.FilterFigures = filters.FilterFigures()
    census: census.CensusFigures = census.CensusFigures()
    doors: doors.Measured = doors.Measured()
    worker: list[worker.Measured] = []
    spark: list[spark.Measured] = []
    spark_worker: list[spark_worker.Measured] = []


def load_figures(path: Path) -> Figures:
    return msgspec.json.decode(path.read_bytes(), type=Figures) if path.exists() else Figures()


def save_figures(path: Path, figures: Figures) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")


_LIFECYCLE = (
    "durability",
    "batch",
    "keys",
    "lifecycles/s",
    "CPU µs",
    "bare RocksDB/s",
    "bare CPU µs",
    "of bare",
    "of fewest keys",
)
_BACKLOG = (
    "backlog",
    "on disk",
    "reopen s",
    "claim + complete/s",
    "of the smallest",
    "memory at reopen MB",
    "memory growth MB",
)

_HOOKS = ("part", "batch", "messages/s with hooks", "without", "of without")
_WAITS = (
    "call beside",
    "enqueues",
    "p50 ms",
    "p99 ms",
    "max ms",
    "p99 with a core",
    "max with a core",
    "the call took s",
    "its CPU s",
    "load",
)
_OPENED = ("logs written by", "logs MB", "census s", "census CPU s", "open in all s", "open in all CPU s")
_MARKED = (
    "durability",
    "batch",
    "messages/s with marks",
    "without",
    "of without",
    "CPU µs a message",
    "without",
    "of without",
)
_MATCHES = ("pattern", "text", "google-re2 us", "Arrow us")
_WORKER = ("pipeline", "messages/s", "bare client/s", "of bare")
_SPARK = ("direction", "cores", "rows a batch", "rows/s", "bare source/s", "of bare", "Parquet/s")
_SPARK_WORKER = (
    "step",
    "cores",
    "claims of",
    "messages/s",
    "local worker/s",
    "of local",
    "bare mapInArrow/s",
    "of bare",
)
_STREAMS = (
    "streams",
    "on disk",
    "reopen s",
    "claim/s",
    "of without",
    "claim + complete/s",
    "of without",
    "memory growth MB",
    "without MB",
)


def show(figures: Figures, console: Console) -> None:
    for title, head, rows in _tables(figures):
        table = Table(*head, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in (*doors_report.contenders(figures.doors), *_aims(figures)):
        console.print(line, highlight=False)


def write_page(figures: Figures, page: Path) -> None:
    kept = _by_hand(page)
    parts = ["# Benchmarks", _INTRODUCTION.strip()]
    if figures.doors.rows:
        parts.append(doors_report.INTRODUCTION.strip())
    older = [group for group, c in figures.conditions.items() if c.engine == FIRST_ENGINE]
    if older:
        parts.append(
            f"**Of the first engine** are the groups {', '.join(older)}, at the commits under *Conditions*: they have not been measured"
            " since it was replaced. [Benchmarks of the engine](benchmarks-of-the-engine.md) has the first and the second side by side."
        )
    if figures.quick:
        parts.append(
            "**These are figures of a quick run** (`python -m bench --quick`): few messages, few rounds. Good for a first look only."
        )
    for title, head, rows in _tables(figures):
        lines = [f"## {title}", "", _row(head), _row("---" for _ in head), *map(_row, rows)]
        parts.append("\n".join(lines))
    if figures.doors.rows:
        parts.append(
            "## Contenders\n\n" + "\n".join(f"* {line}" for line in doors_report.contenders(figures.doors))
        )
    aims = _aims(figures)
    if aims:
        parts.append("## Aims\n\n" + "\n".join(f"* {line}" for line in aims))
    parts.append(
        "## Conditions\n\n"
        + "\n".join(f"* {_conditions(group, c)}" for group, c in figures.conditions.items())
    )
    parts.append(kept)
    page.write_text("\n\n".join(parts).rstrip() + "\n")


_INTRODUCTION = """
Written by `make bench`; the numbers behind it are in `benchmarks.json`. Messages have 1 KB of payload that does not compress. A ratio is taken within
one round of interleaved runs; shown are the median of the rounds and, in brackets, the least and the most. Absolute figures belong to the machine and
commit under *Conditions*, and no test asserts any of them.

*Bare RocksDB* puts, gets and deletes the same bytes in the same batches under time-ordered ids, with the options of the store's `messages` family and
nothing else: no index, no schedule, no lease, no counters. With `fsync` its put and its delete are synced, as are the engine's enqueue and complete.
"""


def _tables(figures: Figures) -> Iterable[tuple[str, tuple[str, ...], Iterable[tuple[str, ...]]]]:
    if figures.in_step:
        yield (
            "In step: enqueue a batch, claim it, complete it",
            _LIFECYCLE,
            [_lifecycle_row(m) for m in figures.in_step],
        )
    if figures.drain:
        yield (
            f"Drain: enqueue {figures.drain[0].messages:,}, then claim and complete them",
            _LIFECYCLE,
            [_lifecycle_row(m) for m in figures.drain],
        )
    if figures.backlog:
        rows = [
            (
                m.backlog,
                f"{m.disk_mb:,.0f} MB",
                m.reopen_s.show(),
                m.rate.show(0),
                m.of_smallest.show(),
                m.opened_mb.show(0),
                m.grown_mb.show(0),
            )
            for m in figures.backlog
        ]
        yield (
            f"Backlog: a fresh process reopens it after a crash, claims and completes {figures.backlog[0].claimed:,}",
            _BACKLOG,
            rows,
        )
    if figures.hooks:
        yield (
            "Hooks: small scripts beside the same messages without",
            _HOOKS,
            [_hooks_row(m) for m in figures.hooks],
        )
    if figures.streams:
        title = f"Streams: a fresh process reopens them after a crash, claims and completes {figures.streams[0].claimed:,}"
        yield title, _STREAMS, [_streams_row(m) for m in figures.streams]
    if figures.filters.waits:
        title = f"Filters: an enqueue beside a scan of {figures.filters.dead:,} dead letters with errors of {filters.ERROR_CHARACTERS:,} characters"
        yield title, _WAITS, [_waits_row(m) for m in figures.filters.waits]
        title = f"Filters: one search in an error of {filters.ERROR_CHARACTERS:,} characters"
        yield title, _MATCHES, [_matches_row(m) for m in figures.filters.matches]
    if figures.census.opened:
        title = f"Noticing damage: a fresh process opens logs that were left behind (load {_loads(figures.census.opened)})"
        yield title, _OPENED, [_opened_row(m) for m in figures.census.opened]
        title = f"Noticing damage: enqueueing with marks and with marks that do nothing (load {_loads(figures.census.marked)})"
        yield title, _MARKED, [_marked_row(m) for m in figures.census.marked]
    yield from doors_report.tables(figures.doors)
    if figures.worker:
        title = f"Workers: {figures.worker[0].messages:,} messages through steps that do nothing, beside a client that claims and completes"
        yield (
            title,
            _WORKER,
            [(m.shape, m.rate.show(0), m.bare.show(0), m.of_bare.show()) for m in figures.worker],
        )

    if figures.spark:
        rows = [
            (
                m.direction,
                str(m.cores),
                f"{m.rows:,}",
                m.rate.show(0),
                m.bare.show(0),
                m.of_bare.show(),
                m.parquet.show(0),
            )
            for m in figures.spark
        ]
        yield (
            "Spark: a stream read (claimed and closed), a batch written (published), beside a source that does nothing",
            _SPARK,
            rows,
        )
    if figures.spark_worker:
        rows = [_spark_worker_row(m) for m in figures.spark_worker]
        yield (
            "Workers on Spark: a step that does nothing, beside the local worker, and mapInArrow over the same rows",
            _SPARK_WORKER,
            rows,
        )


def _loads(rows: Sequence[census.Opening | census.Marking]) -> str:
    return f"{min(row.load for row in rows):.1f} to {max(row.load for row in rows):.1f}"


def _lifecycle_row(m: lifecycle.Measured) -> tuple[str, ...]:
    cpu, bare_cpu = (spent.show(1) if spent else "-" for spent in (m.cpu_us, m.bare_cpu_us))
    rates = (m.rate.show(0), cpu, m.bare.show(0), bare_cpu, m.of_bare.show(), m.of_fewest_keys.show())
    return (m.durability, f"{m.batch:,}", f"{m.keys:,}", *rates)


def _waits_row(m: filters.Measured) -> tuple[str, ...]:
    took = f"{m.call_s:.1f}, ended" if m.ended else f"{m.call_s:.2f}"
    waits = (f"{m.p50_ms:.2f}", f"{m.p99_ms:.1f}", f"{m.max_ms:.1f}")
    with_core = (f"{m.with_core_p99_ms:.1f}", f"{m.with_core_max_ms:.1f}")
    return (m.call, f"{m.enqueues:,}", *waits, *with_core, took, f"{m.call_cpu_s:.2f}", f"{m.load:.1f}")


def _opened_row(m: census.Opening) -> tuple[str, ...]:
    times = (m.census_s, m.census_cpu_s, m.open_s, m.open_cpu_s)
    return (m.written_by, f"{m.logs_mb:.0f}", *(time.show() for time in times))


def _marked_row(m: census.Marking) -> tuple[str, ...]:
    rates = (m.rate.show(0), m.rate_without.show(0), m.rate_of_without.show())
    cpu = (m.cpu_us.show(1), m.cpu_us_without.show(1), m.cpu_of_without.show())
    return (m.durability, f"{m.batch:,}", *rates, *cpu)


def _matches_row(m: filters.Matched) -> tuple[str, ...]:
    return (f"`{m.pattern}`".replace("|", "\\|"), m.text, m.re2.show(1), m.arrow.show(1))


def _hooks_row(m: hooks.Measured) -> tuple[str, ...]:
    return (m.part, f"{m.batch:,}", m.rate.show(0), m.without.show(0), m.of_without.show())


def _spark_worker_row(m: spark_worker.Measured) -> tuple[str, ...]:
    rates = (m.rate.show(0), m.local.show(0), m.of_local.show(), m.bare.show(0), m.of_bare.show())
    return (f"one {m.step} at a time", str(m.cores), f"{m.claim:,}", *rates)


def _streams_row(m: streams.Measured) -> tuple[str, ...]:
    rates = (m.claims.show(0), m.claims_of_without.show(), m.rate.show(0), m.of_without.show())
    return (
        m.shape,
        f"{m.disk_mb:,.0f} MB",
        m.reopen_s.show(),
        *rates,
        m.grown_mb.show(0),
        m.grown_without_mb.show(0),
    )


def _aims(figures: Figures) -> list[str]:
    aims = []
    for m in figures.in_step:
        if m.batch == 500 and m.durability == "os" and m.keys in (10, 1_000, 100_000):
            aims.append(
                _aim(
                    f"in step, batch 500, {m.keys:,} keys: at least 0.4 of bare RocksDB",
                    m.of_bare.median,
                    m.of_bare.median >= 0.4,
                )
            )
    for m in (*figures.in_step, *figures.drain):
        if m.keys == 100_000 and m.batch == 500 and m.durability == "os":
            aims.append(
                _aim(
                    f"{m.shape}, batch 500, 100,000 keys: at least 0.8 of 10 keys",
                    m.of_fewest_keys.median,
                    m.of_fewest_keys.median >= 0.8,
                )
            )
    for b in figures.backlog:
        aims.append(
            _aim(
                f"{b.backlog}: at least 0.8 of the smallest backlog's rate",
                b.of_smallest.median,
                b.of_smallest.median >= 0.8,
            )
        )
        aims.append(
            _aim(f"{b.backlog}: memory grows by less than 150 MB", b.grown_mb.median, b.grown_mb.median < 150)
        )
        aims.append(_aim(f"{b.backlog}: reopened in less than 5 s", b.reopen_s.median, b.reopen_s.median < 5))
    for h in figures.hooks:
        if h.part == "lifecycle":
            aims.append(
                _aim(
                    f"hooks, batch {h.batch}: at least 0.6 of the lifecycles without",
                    h.of_without.median,
                    h.of_without.median >= 0.6,
                )
            )
    for s in figures.streams:
        claims = s.claims_of_without.median
        aims.append(
            _aim(f"{s.shape}: claimed at at least 0.6 of the rate without streams", claims, claims >= 0.6)
        )
        aims.append(
            _aim(f"{s.shape}: memory grows by less than 150 MB", s.grown_mb.median, s.grown_mb.median < 150)
        )
    if figures.filters.waits:
        longest = max(f.max_ms for f in figures.filters.waits)
        with_core = max(f.with_core_max_ms for f in figures.filters.waits)
        aim = f"the longest wait of an enqueue beside a scan or view: below {filters.AIM_MS} ms"
        aims.append(_aim(aim, longest, longest < filters.AIM_MS))
        aims.append(_aim(f"{aim}, without time in the run queue", with_core, with_core < filters.AIM_MS))
    aims += [_aim(*aim) for aim in doors_report.aims(figures.doors)]
    for w in figures.worker:
        if w.shape.startswith("1 step "):
            aims.append(
                _aim(
                    f"{w.shape}: at least half of the bare client", w.of_bare.median, w.of_bare.median >= 0.5
                )
            )
    for p in figures.spark:
        if p.cores == 2:
            got = p.of_bare.median
            aims.append(
                _aim(
                    f"Spark, {p.direction}, {p.rows:,} rows a batch: at least half of the bare source",
                    got,
                    got >= 0.5,
                )
            )
    return aims


def _aim(aim: str, got: float, met: bool) -> str:
    return f"{aim}: {got:.3g}, {'met' if met else 'NOT met'}"


def _conditions(group: str, c: Conditions) -> str:
    machine = f"{c.machine}, {c.cores} cores, {c.memory_gb} GB, {c.system}"
    return f"{group}: {machine}, Python {c.python}, rocksdict {c.rocksdict}, commit {c.commit}, load before {c.load}, {c.measured}"


def _by_hand(page: Path) -> str:
    text = page.read_text() if page.exists() else ""
    return text[text.index(_BY_HAND) :] if _BY_HAND in text else _BY_HAND


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
