"""`fairlead redrive`: return dead letters to their queue, many at once, and show the progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from fairlead.cli.arguments import ids_argument
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.filters import read_filter
from fairlead.cli.from_table import from_verb
from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.ids import full_ids
from fairlead.cli.output import count_of, print_note, progress_bar, show
from fairlead.cli.root import INTERRUPTED
from fairlead.cli.target import Target, open_target
from fairlead.errors import MessageNotFound
from fairlead.model.intent import Intent
from fairlead.model.names import DEAD_LETTER_SUFFIX
from fairlead.model.views import RedriveResult

_POLL_S = 0.2


def register(app: typer.Typer) -> None:
    app.command("redrive")(redrive)


@from_verb(
    "redrive",
    params={
        "ids": ids_argument(),
        "count": typer.Option("--count", "-n"),
        "rate": typer.Option(metavar="PER_SECOND"),
    },
    readers={"filter": read_filter},
)
def redrive(
    request: Any,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --rate: end the command while the redrive continues.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Return dead letters to their queue. Handles any number, at once or at a limited rate.

    The longest dead go first, each with a failure count of 0. Ctrl-C ends the command, not the redrive; the
    command then prints how to stop the redrive.
    """
    queue, by_id = request.queue, bool(request.ids)
    _check_usage(request, detach=detach)
    with open_target() as target:
        request = replace(request, ids=_read_ids(target, queue, request.ids) if by_id else None)
        preview = target.do(replace(request, rate=None, dry_run=True))
        if request.dry_run or not preview.matched:
            text = f"{count_of(preview.matched, 'dead letter')} of queue {queue!r} would return"
            show(preview, text if preview.matched else "nothing to do")
            return
        if by_id:
            result = target.do(request)
        else:
            result = _redrive_many(target, request, preview.matched, detach=detach, yes=yes)
    if result.intent_id is not None and detach:
        text = f"returning {count_of(result.matched, 'dead letter')}; the redrive continues {_where()}"
        show(result, f"{text}; {_how_to_stop(result.intent_id)}")
    else:
        source = queue.removesuffix(DEAD_LETTER_SUFFIX)
        show(result, f"returned {count_of(result.moved, 'dead letter')} to queue {source!r}")


def _check_usage(request: Any, *, detach: bool) -> None:
    if request.ids and request.rate is not None:
        wrong_usage("expected ids or --rate, not both: messages given by id return at once")
    if detach and request.rate is None:
        wrong_usage("expected --rate with --detach")


def _redrive_many(target: Target, request: Any, matched: int, *, detach: bool, yes: bool) -> RedriveResult:
    pace = "" if request.rate is None else f" at {request.rate:g} a second"
    confirm(f"return {count_of(matched, 'dead letter')} of queue {request.queue!r}{pace}", yes=yes)
    if not detach:
        return _RedriveProgress(target, matched).run(lambda: target.do(request))
    result: RedriveResult = target.do(request)
    return result


def _read_ids(target: Target, queue: str, given: list[str]) -> list[str]:
    found, unclear = full_ids(target, queue, given)
    for text, why in unclear:
        if len(given) == 1:
            raise MessageNotFound(text)
        print_note(f"{text}  skipped: {why}")
    return found


class _RedriveProgress:
    """Shows the progress of a redrive, from the intent of the broker. The redrive does not depend on it."""

    def __init__(self, target: Target, matched: int) -> None:
        self._target = target
        self._matched = matched
        self._before = {intent.intent_id for intent in target.intents()}
        self._done = 0
        self._intent_id: int | None = None
        self._result: list[RedriveResult] = []
        self._error: list[BaseException] = []

    def run(self, begin: Callable[[], RedriveResult]) -> RedriveResult:
        caller = threading.Thread(target=self._call, args=(begin,), daemon=True)
        columns = (TextColumn("redrive"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with progress_bar(*columns) as progress:
            bar = progress.add_task("redrive", total=self._matched)
            try:
                caller.start()
                while True:
                    intent = self._intent()
                    if intent is not None:
                        self._done = intent.done
                        progress.update(bar, completed=intent.done)
                    elif not caller.is_alive():
                        break
                    # Without a rate the call lasts as long as the work; with a rate it returns at once.
                    if caller.is_alive():
                        caller.join(_POLL_S)
                    else:
                        sleep(_POLL_S)
            except KeyboardInterrupt:
                progress.stop()
                self._print_that_it_continues()
                raise typer.Exit(INTERRUPTED) from None
        if self._error:
            raise self._error[0]
        result = self._result[0]
        if result.intent_id is None:
            return result
        # With a rate the answer comes before the work; the intent, which has the counts, is removed at the
        # end.
        return RedriveResult(self._matched, self._matched, result.intent_id)

    def _call(self, begin: Callable[[], RedriveResult]) -> None:
        try:
            result = begin()
            self._intent_id = result.intent_id
            self._result.append(result)
        except BaseException as error:  # Raised again by the thread that waits.
            self._error.append(error)

    def _intent(self) -> Intent | None:
        for intent in self._target.intents():
            if intent.kind == "redrive" and self._is_ours(intent):
                self._intent_id = intent.intent_id
                return intent
        return None

    def _is_ours(self, intent: Intent) -> bool:
        if self._intent_id is not None:
            return intent.intent_id == self._intent_id
        return intent.intent_id not in self._before

    def _print_that_it_continues(self) -> None:
        if wants_json():
            show(RedriveResult(self._matched, self._done, self._intent_id))
        elif self._intent_id is None:
            print_note(f"the command ends; the redrive continues {_where()}")
        else:
            print_note(f"the command ends; the redrive continues {_where()}; {_how_to_stop(self._intent_id)}")


def _where() -> str:
    return (
        "in the server"
        if isinstance(current_options().target(), str)
        else "whenever the data directory is open"
    )


def _how_to_stop(intent_id: int) -> str:
    return f"show it with: fairlead intent list, stop it with: fairlead intent cancel {intent_id}"
