"""The course of every operator's verb: choose messages, decide about each, and change them in short
transactions.

A call changes at most 10,000 messages. A filter tests at most 100,000 messages, and only those that existed
when the call began; the result says whether there are more of either. After an error or a crash, the
transactions before it are complete, and the same call continues with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairlead.decide.arguments import check_bool, check_filter, check_ids
from fairlead.decide.dead_filter import DeadFilter
from fairlead.decide.holds import in_holds
from fairlead.engine.choose import Candidate, Selection, is_unchanged
from fairlead.engine.queue import Queue
from fairlead.engine.room import check_moves
from fairlead.engine.transaction import HookAnswers, Transaction
from fairlead.errors import InvalidRequest, ServerStopping
from fairlead.model.ids import show_id
from fairlead.model.limits import STEP_MESSAGES
from fairlead.model.views import OperatorResult
from fairlead.records.facts import StateFact
from fairlead.verbs.operate import Operation

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: What happens to a message, as a fact; or why nothing does, as a text.
Decide = Callable[[Transaction, int], StateFact | str]
#: Calls hooks for messages, by their ids.
Ask = Callable[[Sequence[bytes]], HookAnswers]

EVERYWHERE = frozenset({"leased", "ready", "waiting", "dead"})
NOT_HERE = "not found in this queue"
CHANGED = "it changed while the filter was applied; try again"


def act(
    engine: Engine,
    request: Operation[OperatorResult],
    decide: Decide,
    *,
    among: Collection[str] = EVERYWHERE,
    ask: Ask | None = None,
    grows: bool = False,
) -> OperatorResult:
    """Carry out an operator's verb.

    `ask` calls hooks for messages, without the lock, before they change. `grows`: the moves store more than
    before, and stop at the disk reserve. `among` limits where a filter searches; ids are looked up wherever
    they are. A dry run decides everything and changes nothing.
    """
    given: Any = request
    check_bool(given.dry_run, "dry_run")
    if (given.ids is None) == (given.filter is None):
        raise InvalidRequest("ids", "a list of message ids, or None and a filter", given.ids)
    run = ActRun(engine, given.queue, decide, dry_run=given.dry_run, ask=ask, grows=grows)
    if given.ids is not None:
        return run.change_named(given.ids)
    return run.change_selected(check_filter(given.filter), among)


class ActRun:
    """One call for a queue, which changes at most `most` messages."""

    def __init__(
        self,
        engine: Engine,
        queue_name: str,
        decide: Decide,
        *,
        dry_run: bool,
        most: int | None = None,
        ask: Ask | None = None,
        grows: bool = False,
    ) -> None:
        self._grows = grows
        self._ask = None if dry_run else ask
        self._engine = engine
        with engine.transaction() as tx:
            self._queue_id = tx.queue(queue_name).record.queue_id
        self._decide = decide
        self._dry_run = dry_run
        self._most = STEP_MESSAGES if most is None else most
        self._changed: list[str] = []
        self._skipped: list[tuple[str, str]] = []
        #: Ids as the caller wrote them.
        self._texts: dict[bytes, str] = {}
        #: A changed message may be met again at its new place.
        self._met: set[bytes] = set()

    def change_named(self, ids: Sequence[str]) -> OperatorResult:
        self._texts = check_ids(ids)
        return self.change_all([Candidate(raw_id, None) for raw_id in self._texts])

    def change_selected(self, given: DeadFilter, among: Collection[str] = EVERYWHERE) -> OperatorResult:
        with self._engine.transaction() as tx:
            selection = Selection(self._engine, tx, tx.memory.by_id[self._queue_id], given, among)
        result = self.change_all(selection)
        return replace(result, more=result.more or selection.is_cut)

    def change_all(self, chosen: Iterable[Candidate]) -> OperatorResult:
        try:
            has_more = any(self._change_part(part) for part in in_holds(chosen))
        except ServerStopping:
            # The caller must learn what was changed; the same call continues with the rest.
            if not self._changed or self._dry_run:
                raise
            has_more = True
        if self._changed and not self._dry_run:
            self._engine.confirm()
        return OperatorResult(tuple(self._changed), tuple(self._skipped), has_more)

    def _change_part(self, part: list[Candidate]) -> bool:
        """Returns whether some are left because the call may change no more."""
        distinct = {candidate.raw_id: candidate for candidate in part}
        left = [candidate for raw_id, candidate in distinct.items() if raw_id not in self._met]
        while left and (room := self._most - len(self._changed)):
            self._change(left[:room])
            left = left[room:]
        return bool(left)

    def _change(self, part: list[Candidate]) -> None:
        """One transaction: every decision comes before the first change."""
        facts: list[StateFact] = []
        raw_ids = [candidate.raw_id for candidate in part]
        answers = HookAnswers() if self._ask is None else self._ask(raw_ids)
        with self._engine.transaction(answers) as tx:
            queue = tx.memory.by_id.get(self._queue_id)
            if queue is None:
                return
            numbers = tx.find_messages(raw_ids)
            for candidate in part:
                self._met.add(candidate.raw_id)
                decided = self._decide_about(tx, queue, candidate, numbers.get(candidate.raw_id))
                if isinstance(decided, str):
                    self._skip(candidate, decided)
                else:
                    self._changed.append(show_id(candidate.raw_id))
                    facts.append(decided)
            if self._dry_run:
                return
            if self._grows:
                check_moves(tx, facts)
            for fact in facts:
                tx.add(fact)

    def _decide_about(
        self, tx: Transaction, queue: Queue, candidate: Candidate, number: int | None
    ) -> StateFact | str:
        if number is None or not _is_in(tx, number, queue):
            return NOT_HERE
        if not is_unchanged(candidate, tx.state_of(number)):
            return CHANGED
        return _why_in_claim(tx, number) or self._decide(tx, number)

    def _skip(self, candidate: Candidate, why: str) -> None:
        if why is NOT_HERE and candidate.raw_id not in self._texts:
            # A filter selected the message, and it has left the queue since.
            return
        if len(self._skipped) < STEP_MESSAGES:
            text = self._texts[candidate.raw_id] if why is NOT_HERE else show_id(candidate.raw_id)
            self._skipped.append((text, why))


def _why_in_claim(tx: Transaction, number: int) -> str:
    """Why a message cannot change: messages of a numbered claim stay until the claim ends."""
    lease = tx.memory.held.get(number)
    return "" if lease is None else tx.memory.consumers.why_in_claim(lease.terms)


def _is_in(tx: Transaction, number: int, queue: Queue) -> bool:
    """Whether the message is in the queue or its dead letters; for a dead-letter queue, only its own messages
    count.
    """
    found = tx.memory.by_id[tx.state_of(number).queue_id]
    return found is queue or (found.home_id == queue.home_id and not queue.is_dead_letter_queue)
