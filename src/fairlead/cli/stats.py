"""`fairlead stats`: the counts of queues, once or at intervals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlead.cli.arguments import complete_queue
from fairlead.cli.charts import Bar, count_text, show_bytes, show_count, show_rate
from fairlead.cli.global_options import in_project, wants_json
from fairlead.cli.output import clean, console, show, show_json, table, unless_piped
from fairlead.cli.stats_samples import KeyShare, Rates, StatsSample, key_shares, rates_between, stats_document
from fairlead.cli.target import Target, open_target
from fairlead.errors import InvalidRequest, QueueNotFound
from fairlead.model.durations import to_ms
from fairlead.model.names import is_dead_letter_name
from fairlead.model.views import QueueStats

_MIN_INTERVAL_MS = 10
_MAX_KEYS = 50
_FLOW = (("enqueued", "in/s"), ("delivered", "out/s"), ("completed", "done/s"), ("failed", "fail/s"))


def register(app: typer.Typer) -> None:
    app.command("stats")(stats)


Interval = Annotated[
    str,
    typer.Option("--interval", metavar="DURATION", help="Time between two samples, such as 500ms."),
]


def stats(
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE",
            help="Queues to show. Default: all but dead-letter queues.",
            autocompletion=complete_queue,
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Repeat at each interval, with rates per second, until Ctrl-C."),
    ] = False,
    interval: Interval = "1s",
    keys: Annotated[
        bool, typer.Option("--keys", "-k", help="Show the fairness keys of each queue and their shares.")
    ] = False,
    looks: Annotated[
        int | None, typer.Option("--looks", metavar="N", min=1, help="With --watch: end after N samples.")
    ] = None,
) -> None:
    """Show the message counts of queues: ready, waiting, leased and dead.

    With --watch, rates are per second between two samples. -o json prints one document, with --watch one per
    line.
    """
    pause_s = read_interval(interval)
    named = [in_project(name) for name in queues or ()]
    with open_target() as target:
        if not watch:
            sample = take_sample(target, named, keys=keys)
            show(
                document(None, sample, keys),
                lambda: stats_view(sample, {}, shares_of(None, sample) if keys else {}),
            )
            return
        try:
            _watch(take_samples(target, named, pause_s, keys=keys, most=looks), keys)
        except KeyboardInterrupt:
            return


def read_interval(interval: str) -> float:
    """Return the interval in seconds. Raises `InvalidRequest`."""
    ms = to_ms(interval, "interval")
    if ms < _MIN_INTERVAL_MS:
        raise InvalidRequest("interval", f"at least {_MIN_INTERVAL_MS}ms", interval)
    return ms / 1000


def take_sample(target: Target, names: Sequence[str] = (), *, keys: bool = False) -> StatsSample:
    """Sample the named queues, or all queues of the chosen project: one call for the list, and one per queue.

    A queue that is deleted meanwhile is left out, unless it was named.
    """
    found = []
    for name in names or [info.name for info in target.queues(in_project("")) if info.source is None]:
        try:
            found.append(target.stats(name, keys=keys, key_limit=_MAX_KEYS) if keys else target.stats(name))
        except QueueNotFound:
            if names:
                raise
    return StatsSample(time.monotonic(), tuple(found))


def take_samples(
    target: Target, names: Sequence[str], pause_s: float, *, keys: bool, most: int | None
) -> Iterator[StatsSample]:
    """Yield samples; the time between two samples does not include the time that a sample takes."""
    for number in count(1):
        yield take_sample(target, names, keys=keys)
        if number == most:
            return
        time.sleep(pause_s)


def _watch(samples: Iterator[StatsSample], keys: bool) -> None:
    out = console()
    before: StatsSample | None = None
    if wants_json():
        for sample in samples:
            show_json(document(before, sample, keys))
            before = sample
        return
    if not out.is_terminal:
        for sample in samples:
            out.print(_watch_view(before, sample, keys))
            out.print()
            before = sample
        return
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        for sample in samples:
            live.update(_watch_view(before, sample, keys), refresh=True)
            before = sample


def _watch_view(before: StatsSample | None, sample: StatsSample, keys: bool) -> RenderableType:
    return stats_view(
        sample, rates_between(before, sample), shares_of(before, sample) if keys else {}, watching=True
    )


def document(before: StatsSample | None, sample: StatsSample, keys: bool) -> dict[str, object]:
    return stats_document(
        sample, rates_between(before, sample), keys=shares_of(before, sample) if keys else None
    )


def shares_of(before: StatsSample | None, sample: StatsSample) -> dict[str, list[KeyShare]]:
    seconds = sample.at_s - before.at_s if before else 0.0
    return {
        stats.queue: key_shares(before.find(stats.queue) if before else None, stats, seconds)
        for stats in sample.queues
    }


def stats_view(
    sample: StatsSample,
    rates: Mapping[str, Rates],
    shares: Mapping[str, Sequence[KeyShare]],
    *,
    watching: bool = False,
) -> RenderableType:
    if not sample.queues:
        return Text("there are no queues yet; create one with: fairlead queue create NAME")
    columns = _FLOW if watching else ()
    numbers = ("ready", "waiting", "leased", "dead", "bytes", "consumers", *(header for _, header in columns))
    made = table("queue", *numbers, "state", right=numbers)
    for stats in sample.queues:
        found = rates.get(stats.queue)
        passed: Mapping[str, float] = {} if found is None else found.flow
        made.add_row(
            Text(clean(stats.queue), style="bold"),
            *_alive(stats),
            count_text(stats.leased, "green"),
            count_text(stats.dead, "red"),
            show_bytes(stats.bytes),
            show_count(stats.consumers),
            *(show_rate(passed.get(name)) for name, _ in columns),
            Text(state_of(stats), style="yellow"),
        )
    parts: list[RenderableType] = [made]
    for stats in sample.queues:
        if stats.queue in shares:
            parts += ["", keys_view(stats, shares[stats.queue])]
    return Group(*parts)


def state_of(stats: QueueStats) -> str:
    broken = [
        f"{hook.function} breaker open" for hook in stats.hooks if hook.breaker_open_until_ms is not None
    ]
    return ", ".join([*(["paused"] if stats.paused else []), *broken])


def keys_view(stats: QueueStats, shares: Sequence[KeyShare]) -> RenderableType:
    if not shares:
        return Text(f"{clean(stats.queue)}: no fairness key has ready messages", style="dim")
    made: Table = table(
        "key", "weight", "due", "got", "out/s", "", "ready", right=("weight", "due", "got", "out/s", "ready")
    )
    most = max(max(share.got or 0.0, share.fair) for share in shares)
    for share in shares:
        made.add_row(
            clean(share.key, most=unless_piped(40)),
            str(share.weight),
            f"{share.fair:.1%}",
            "–" if share.got is None else f"{share.got:.1%}",
            show_rate(share.out_per_s),
            Bar((share.got or 0.0) / most, 20, "green", mark=share.fair / most),
            show_count(share.pending) + ("+" if share.more else ""),
        )
    more = stats.active_keys - len(shares)
    title = Text(f"{clean(stats.queue)}: fairness keys", style="bold")
    return Group(title, made, *([Text(f"{more:,} more keys are active", style="dim")] if more > 0 else []))


def _alive(stats: QueueStats) -> tuple[Text, Text]:
    """Ready and waiting messages. A dead-letter queue has neither: its messages count as dead."""
    if is_dead_letter_name(stats.queue):
        return Text("-", style="dim"), Text("-", style="dim")
    return count_text(stats.ready, "cyan"), count_text(stats.waiting, "yellow")
