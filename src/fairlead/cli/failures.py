"""`fairlead failures`: what fails in a queue, why, and who is held up by it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from fairlead.cli.arguments import QueueName
from fairlead.cli.failures_view import MAX_POISON_SHOWN, failures_view
from fairlead.cli.output import now_ms, plain, show
from fairlead.cli.target import Target, open_target
from fairlead.errors import MessageNotFound
from fairlead.model.views import PoisonCandidate


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
        errors = _last_errors(target, metrics.poison_candidates[:MAX_POISON_SHOWN])
    document = {**plain(metrics), "dead": dead}
    for candidate in document["poison_candidates"]:
        if candidate["id"] in errors:
            candidate["error"] = errors[candidate["id"]]
    show(document, lambda: failures_view(metrics, dead=dead, now_ms=now_ms(), errors=errors))


def _last_errors(target: Target, candidates: Iterable[PoisonCandidate]) -> dict[str, str]:
    """By `find`, which leaves out what the caller may not read. A message that is gone meanwhile has none."""
    found: dict[str, str] = {}
    for candidate in candidates:
        try:
            failures = target.find(candidate.id).failures
        except MessageNotFound:
            continue
        found[candidate.id] = failures[-1].error if failures else ""
    return found
