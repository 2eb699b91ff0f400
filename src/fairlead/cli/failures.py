"""`fairlead failures`: what fails in a queue, why, and who is held up by it."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.arguments import QueueName
from fairlead.cli.failures_view import failures_view
from fairlead.cli.output import now_ms, plain, show
from fairlead.cli.target import open_target


def register(app: typer.Typer) -> None:
    app.command("failures")(failures)


def failures(
    queue: QueueName,
    streams: Annotated[
        int, typer.Option("--streams", min=1, max=10_000, help="How many blocked streams to list.")
    ] = 20,
) -> None:
    """Show how often live messages have failed and why, scheduled retries, poison candidates, and blocked
    streams.
    """
    with open_target() as target:
        metrics = target.failure_metrics(queue, streams=streams)
        dead = target.stats(queue).dead
    show({**plain(metrics), "dead": dead}, lambda: failures_view(metrics, dead=dead, now_ms=now_ms()))
