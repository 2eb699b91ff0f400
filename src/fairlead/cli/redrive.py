"""`fairlead redrive`: bring dead letters back, many at once, and watch them go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fairlead.cli.arguments import ids_argument
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.filters import read_filter
from fairlead.cli.from_table import from_verb
from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.ids import full_ids
from fairlead.cli.output import console, count_of, print_note, show
from fairlead.cli.root import INTERRUPTED
from fairlead.cli.target import Target, open_target
from fairlead.errors import MessageNotFound
from fairlead.model.intent import Intent
from fairlead.model.names import DEAD_LETTER_SUFFIX
from fairlead.model.views import RedriveResult

_LOOK_EVERY_S = 0.2


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
        bool, typer.Option("--detach", help="With --rate: do not wait until it is done.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Bring dead letters back to their queue, many at once or at a rate.

    The longest dead go first, each with a new life of attempts. A command that watches a redrive may be left
    with Ctrl-C: the redrive goes on, and the command says how to stop it.
    """
    queue, rate, by_id = request.queue, request.rate, bool(request.ids)
    if by_id and rate is not None:
        wrong_usage("expected ids or --rate, not both: those go at once")
    if detach and rate is None:
        wrong_usage("expected --rate with --detach")
    with open_target() as target:
        ids = _read_ids(target, queue, request.ids) if by_id else None
        request = replace(request, ids=ids)
        told = target.do(replace(request, rate=None, dry_run=True))
        if request.dry_run or not told.matched:
            would = f"{count_of(told.matched, 'dead letter')} of queue {queue!r} would go back"
            show(told, would if told.matched else "nothing to do")
            return
        if not by_id:
            pace = f" at {rate:g} a second" if rate is not None else ""
            confirm(f"bring back {count_of(told.matched, 'dead letter')} of queue {queue!r}{pace}", yes=yes)
        if by_id or detach:
            result = target.do(request)
        else:
            result = _RedriveProgress(target, told.matched).run(lambda: target.do(request))
    if result.intent_id is not None and detach:
        going = f"bringing back {count_of(result.matched, 'dead letter')}; it goes on {_where()}"
        show(result, f"{going}; {_how_to_stop(result.intent_id)}")
    else:
        source = queue.removesuffix(DEAD_LETTER_SUFFIX)
        show(result, f"brought back {count_of(result.moved, 'dead letter')} to queue {source!r}")


def _read_ids(target: Target, queue: str, given: list[str]) -> list[str]:
    found, unclear = full_ids(target, queue, given)
    for text, why in unclear:
        if len(given) == 1:
            raise MessageNotFound(text)
        print_note(f"{text}  skipped: {why}")
    return found


class _RedriveProgress:
    """Follows a redrive by what the broker says about its intent; the work itself needs nobody to watch it."""

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
        out = console(stderr=True)
        with Progress(
            *columns, console=out, transient=True, disable=wants_json() or not out.is_terminal
        ) as progress:
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
                    # Without a rate the call lasts as long as the work; with one it returns at once.
                    if caller.is_alive():
                        caller.join(_LOOK_EVERY_S)
                    else:
                        sleep(_LOOK_EVERY_S)
            except KeyboardInterrupt:
                progress.stop()
                self._say_that_it_goes_on()
                raise typer.Exit(INTERRUPTED) from None
        if self._error:
            raise self._error[0]
        result = self._result[0]
        # At a rate, the broker counts in the intent, which is gone when all of it is done; and it had begun
        # before it answered.
        return (
            result
            if result.intent_id is None
            else RedriveResult(self._matched, self._matched, result.intent_id)
        )

    def _call(self, begin: Callable[[], RedriveResult]) -> None:
        try:
            result = begin()
            self._intent_id = result.intent_id
            self._result.append(result)
        except BaseException as error:  # told by the thread that waits
            self._error.append(error)

    def _intent(self) -> Intent | None:
        for intent in self._target.intents():
            ours = (
                intent.intent_id == self._intent_id
                if self._intent_id is not None
                else intent.intent_id not in self._before
            )
            if intent.kind == "redrive" and ours:
                self._intent_id = intent.intent_id
                return intent
        return None

    def _say_that_it_goes_on(self) -> None:
        if wants_json():
            show(RedriveResult(self._matched, self._done, self._intent_id))
        elif self._intent_id is None:
            print_note(f"stopped watching; what was begun goes on {_where()}")
        else:
            print_note(f"stopped watching; it goes on {_where()}; {_how_to_stop(self._intent_id)}")


def _where() -> str:
    return (
        "in the server"
        if isinstance(current_options().target(), str)
        else "whenever the data directory is open"
    )


def _how_to_stop(intent_id: int) -> str:
    return f"see it with: fairlead intent list, stop it with: fairlead intent cancel {intent_id}"
