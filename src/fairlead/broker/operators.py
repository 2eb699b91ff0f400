"""What an operator may do to messages, by id or by filter, with no lease token.

A lease that stands in the way is revoked: its holder's settle says `lost_lease`, and nothing runs a second
time because of it. Messages in a numbered claim stay as they are, and the result says so. A pending due time
ends with the move.

A call changes at most 10,000 messages, in commits of one hold of the lock each: messages are chosen without
the lock, and checked again under it. A filter looks only where its verb finds anything to do, at messages
that were there when the call began, and at 100,000 at most. When there are more of either, the result says
so. An error or a crash leaves the commits before it, each of which is whole: the same call goes on with the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.hooking import (
    Answers,
    FailedTry,
    Lanes,
    ask_on_failure,
    ask_on_redrive,
    has_enqueue_hook,
    has_failure_hook,
)
from fairlead.broker.locate import Located, locate_all
from fairlead.broker.looking import admitted, first_ready, info_of, names_of, place_of
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.scan import Candidate, named, select, still_selected, take_in_time
from fairlead.broker.walk import HasRow, leases_of, ready_member_pages, ready_pages, waiting_pages
from fairlead.decide.arguments import check_bool, check_count, check_filter, check_ids
from fairlead.decide.dead_filter import DeadFilter, DeadLetterTest
from fairlead.decide.holds import in_holds
from fairlead.errors import FairleadError, InvalidRequest, MessageNotFound, ServerStopping
from fairlead.model.checks import check_text
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import InDone, InLease, InReady, InStream, InWaiting, Spot, spot_queue_id
from fairlead.model.failure import FailureReason, FailureRecord
from fairlead.model.ids import show_id
from fairlead.model.lane import row_id, row_size
from fairlead.model.limits import HOLD_MESSAGES, MAX_KEY_BYTES, MAX_PAGE, SCAN_LIMIT, STEP_MESSAGES
from fairlead.model.message import HELD, Message, MessageState, record_bytes, with_failure
from fairlead.model.views import MessageInfo, OperatorResult

#: What a verb does to one message; the answer is why it did nothing, or "".
Act = Callable[[Moves, QueueState, Message, MessageState | None, Spot], str]

EVERYWHERE = frozenset({"leased", "ready", "waiting", "dead"})
LIVE = frozenset({"leased", "ready", "waiting"})
LEASED = frozenset({"leased"})
WAITING = frozenset({"waiting"})
DEAD = frozenset({"dead"})
#: Why a verb leaves alone what is done and only kept to be looked at.
COMPLETED = "completed already"
ALREADY_HELD = "already held"
NOT_FAILED = "neither dead nor waiting after a failure"
_CHANGED = "it changed while the filter was applied; try again"
_NOT_HERE = "not found in this queue"

#: Asks hooks, without the lock, about messages that a verb is about to change.
Ask = Callable[[Sequence[Candidate]], None]


def act(
    core: Core,
    queue_name: str,
    ids: Sequence[str] | None,
    filter: DeadFilter | None,
    verb: Act,
    *,
    among: frozenset[str] = EVERYWHERE,
    dry_run: bool = False,
    most: int | None = None,
    ask: Ask | None = None,
    grows: bool = False,
) -> OperatorResult:
    """`among` is where a filter looks; ids are looked up wherever they are. A dry run decides everything and
    commits nothing.

    `grows`: the call stops at the disk reserve.
    """
    check_bool(dry_run, "dry_run")
    if (ids is None) == (filter is None):
        raise InvalidRequest("ids", "a list of message ids, or None and a filter", ids)
    with core.lock:
        run = _Run(
            core, core.queue(queue_name), verb, dry_run, STEP_MESSAGES if most is None else most, grows
        )
    chosen = run.named(ids) if ids is not None else run.selected(check_filter(filter), among)
    try:
        for part in chosen:
            if not run.change(part, None if dry_run else ask):
                break
    except ServerStopping:
        # What was changed must be told; who asks again goes on with the rest.
        if not run.changed or dry_run:
            raise
        run.more = True
    if not dry_run:
        core.confirm(run.commit)
    return OperatorResult(tuple(run.changed), tuple(run.skipped), run.more)


class _Run:
    """One call of a verb. Made under the lock; everything else is called without."""

    def __init__(
        self, core: Core, queue: QueueState, verb: Act, dry_run: bool, most: int, grows: bool
    ) -> None:
        self.changed: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self.more = False
        self.commit = core.store.last_commit
        self._core = core
        self._queue_id = queue.queue_id
        self._queue_ids = (
            [queue.queue_id] if queue.is_dead_letter_queue else [queue.queue_id, queue.record.dlq_id]
        )
        self._verb = verb
        self._dry_run = dry_run
        self._most = most
        self._grows = grows
        self._texts: dict[bytes, str] = {}
        #: A message that a verb moved on is met again where it is then.
        self._handled: set[bytes] = set()
        self._began_ms = core.now_ms()
        self._marker = core.ids.next(self._began_ms, 1)[0]

    def named(self, ids: Sequence[str]) -> Iterator[list[Candidate]]:
        self._texts = check_ids(ids)
        return in_holds(named(self._core, list(self._texts)))

    def selected(self, filter: DeadFilter, among: frozenset[str]) -> Iterator[list[Candidate]]:
        """What the filter selects in these places of the queue and its dead letters, in parts of one hold."""
        test = DeadLetterTest(filter, now_ms=self._began_ms)
        looked_at = 0
        for queue_id in self._queue_ids:
            for page in self._pages(queue_id, among):
                room = SCAN_LIMIT - looked_at
                looked_at += len(page)
                here = [one for one in page[:room] if row_id(one.row) < self._marker]
                yield from in_holds(select(self._core, test, here))
                if len(page) > room:
                    self.more = True
                    return

    def _pages(self, queue_id: int, among: frozenset[str]) -> Iterator[Sequence[HasRow]]:
        core = self._core
        where = among | {"leased", "ready"} if "dead" in among and _is_dead_queue(core, queue_id) else among
        if "leased" in where:
            yield leases_of(core, queue_id)
        if "ready" in where:
            yield from ready_pages(core, queue_id)
            yield from ready_member_pages(core, queue_id)
        if "waiting" in where:
            yield from waiting_pages(core, queue_id)

    def change(self, part: Sequence[Candidate], ask: Ask | None) -> bool:
        """Do to these what the verb says; False when the call may change no more."""
        left = [candidate for candidate in part if candidate.id not in self._handled]
        while left:
            room = self._most - len(self.changed)
            if room <= 0:
                self.more = True
                return False
            some, left = left[:room], left[room:]
            if ask is not None:
                ask(some)
            while some:
                some = some[self._change(some) :]
        return True

    def _change(self, part: Sequence[Candidate]) -> int:
        """One hold of the lock, and one commit. Returns how many of the candidates it came to."""
        core, taken = self._core, 0
        with core.step():
            core.check_open()
            queue = core.by_id.get(self._queue_id)
            if queue is None:
                return len(part)
            moves = Moves(core, core.now_ms(), grows=self._grows)
            for candidate, found in take_in_time(core, part):
                self._handled.add(candidate.id)
                self._note(candidate, self._decide(moves, queue, candidate, found))
                taken += 1
            if not self._dry_run:
                moves.commit()
            self.commit = core.store.last_commit
        return taken

    def _decide(self, moves: Moves, queue: QueueState, candidate: Candidate, found: Located | None) -> str:
        """Why the verb leaves it alone, or "" when it does not."""
        if found is None or spot_queue_id(found.spot) not in self._queue_ids:
            return _NOT_HERE
        if not still_selected(candidate, found.state):
            return _CHANGED
        return _pinned(self._core, found.spot) or self._verb(
            moves, queue, found.message, found.state, found.spot
        )

    def _note(self, candidate: Candidate, why_not: str) -> None:
        if not why_not:
            self.changed.append(show_id(candidate.id))
        elif why_not is _NOT_HERE and candidate.id not in self._texts:
            # A filter selected it, and it has left the queue since.
            pass
        elif len(self.skipped) < STEP_MESSAGES:
            text = self._texts[candidate.id] if why_not is _NOT_HERE else show_id(candidate.id)
            self.skipped.append((text, why_not))


def _pinned(core: Core, spot: Spot) -> str:
    """Messages in a numbered claim stay as they are until the claim is over."""
    return core.consumer_book.why_pinned(spot.lease) if isinstance(spot, InLease) else ""


def _is_dead_queue(core: Core, queue_id: int) -> bool:
    state = core.by_id.get(queue_id)
    return state is not None and state.is_dead_letter_queue


def _is_dead(core: Core, spot: Spot) -> bool:
    return _is_dead_queue(core, spot_queue_id(spot))


# The verbs


def retry(
    core: Core,
    queue_name: str,
    ids: Sequence[str] | None,
    filter: DeadFilter | None,
    *,
    keep_count: bool = False,
    dry_run: bool = False,
) -> OperatorResult:
    """Dead, or waiting after a failure: now, with a count of 0. The pending due time is gone, so it runs
    once. With `keep_count` only messages that wait, and their count stays.

    A dead letter goes through the enqueue flow of its queue, hook included. A single id that cannot be
    retried raises `MessageNotFound` or `InvalidRequest`; among several ids it is skipped.
    """
    check_bool(keep_count, "keep_count")
    lanes: Lanes = {}

    def ask(part: Sequence[Candidate]) -> None:
        lanes.update(_ask_about_dead(core, queue_name, part))

    def verb(
        moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot
    ) -> str:
        if isinstance(spot, InDone):
            return COMPLETED
        if not _is_dead(core, spot):
            if not isinstance(spot, InWaiting) or state is None or not state.attempts:
                return NOT_FAILED
            moves.become_due(spot, state if keep_count else msgspec.structs.replace(state, attempts=0))
            return ""
        if keep_count:
            return "dead; its next life begins with a count of 0"
        source = core.by_id.get(state.source_queue_id) if state is not None else None
        if source is None or state is None:
            return "its queue no longer exists"
        if not isinstance(spot, InReady):
            return "leased in the dead-letter queue"
        if has_enqueue_hook(source) and message.id not in lanes and not dry_run:
            return "died just now, before its hook could be asked; try again"
        lane, weight = lanes.get(message.id, (b"", 0))
        moves.redrive(spot, state, message, source, clear_progress=False, lane=lane, weight=weight)
        return ""

    result = act(
        core, queue_name, ids, filter, verb, among=WAITING | DEAD, dry_run=dry_run, ask=ask, grows=True
    )
    if ids is not None and len(ids) == 1 and result.skipped:
        raise _refused_retry(core, *result.skipped[0])
    return result


def _refused_retry(core: Core, message_id: str, why: str) -> FairleadError:
    if why is _NOT_HERE:
        return MessageNotFound(message_id)
    found = place_of(core, message_id) if why is NOT_FAILED else why
    return InvalidRequest(f"message {message_id}", "dead, or waiting after a failure", found)


def _ask_about_dead(core: Core, queue_name: str, part: Sequence[Candidate]) -> Lanes:
    """Without the lock: what `on_enqueue` says about the dead letters that are to come back."""
    with core.step():
        queue = core.queue(queue_name)
        source = core.by_id.get(queue.record.source_id) if queue.is_dead_letter_queue else queue
        if source is None or not has_enqueue_hook(source):
            return {}
        found = locate_all(core, [candidate.id for candidate in part])
        dead = [one.message for one in found if one is not None and _is_dead(core, one.spot)]
        queue_id, name = source.queue_id, source.name
    return ask_on_redrive(core, queue_id, name, dead)


def drop(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    moves.drop(spot)
    return ""


def done(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    """Someone did the work by hand."""
    if _is_dead(moves.core, spot):
        return "dead; use drop, or retry first"
    if isinstance(spot, InDone):
        return COMPLETED
    home = moves.core.by_id[spot_queue_id(spot)]
    if home.config.retain_completed_ms:
        moves.retain(spot, state, home)
    else:
        moves.drop(spot, "completed")
    return ""


def bury(error: str, reason: FailureReason) -> Act:
    def verb(
        moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot
    ) -> str:
        if _is_dead(moves.core, spot):
            return "already dead"
        if isinstance(spot, InDone):
            return COMPLETED
        known = state or MessageState(queue.queue_id)
        record = FailureRecord(moves.now_ms, known.attempts, int(reason), error, "", "operator")
        moves.bury(spot, with_failure(known, record), moves.core.by_id[spot_queue_id(spot)])
        return ""

    return verb


def hold(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    if _is_dead(moves.core, spot):
        return "dead; it is not delivered anyway"
    if isinstance(spot, InDone):
        return COMPLETED
    if isinstance(spot, InWaiting) and spot.due_ms == HELD:
        return ALREADY_HELD
    moves.hold(spot, state or MessageState(queue.queue_id))
    return ""


def hold_because(error: str, reason: FailureReason) -> Act:
    """Hold with a record of why, such as `poison_message`. It is no attempt. A message that is held already
    gets the record too, so that a reason can be given later.
    """

    def verb(
        moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot
    ) -> str:
        known = state or MessageState(queue.queue_id)
        record = FailureRecord(moves.now_ms, known.attempts, int(reason), error, "", "operator")
        recorded = with_failure(known, record)
        why_not = hold(moves, queue, message, recorded, spot)
        if why_not == ALREADY_HELD:
            moves.hold(spot, recorded)
            return ""
        return why_not

    return verb


def reset(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    if isinstance(spot, InDone):
        return COMPLETED
    if _is_dead(moves.core, spot):
        return "dead; use retry or redrive"
    if state is None or not state.attempts:
        return "its count is 0"
    moves.recount(message.id, state, 0)
    return ""


def unhold(moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot) -> str:
    if not isinstance(spot, InWaiting) or spot.due_ms != HELD:
        return "not held"
    moves.become_due(spot, state)
    return ""


def fail(
    core: Core,
    queue_name: str,
    ids: Sequence[str] | None,
    filter: DeadFilter | None,
    error: str,
    reason: FailureReason,
    *,
    dry_run: bool = False,
) -> OperatorResult:
    """What is leased fails as if its holder had said so: hook and policy decide."""
    answers: Answers = {}

    def ask(part: Sequence[Candidate]) -> None:
        answers.update(_ask_about_leased(core, queue_name, part, error, reason))

    def verb(
        moves: Moves, queue: QueueState, message: Message, state: MessageState | None, spot: Spot
    ) -> str:
        if not isinstance(spot, InLease) or _is_dead(core, spot):
            return "not leased"
        if dry_run:
            # The road of a failure counts for the breaker, commit or not.
            return ""
        hook = answers.get((spot.lease.id, spot.lease.claim_id))
        moves.fail(spot.lease, state, reason=reason, error=error, hook=hook)
        return ""

    return act(core, queue_name, ids, filter, verb, among=LEASED, dry_run=dry_run, ask=ask)


def _ask_about_leased(
    core: Core, queue_name: str, part: Sequence[Candidate], error: str, reason: FailureReason
) -> Answers:
    """Without the lock: what `on_failure` says about the deliveries that are to fail."""
    with core.step():
        queue = core.queue(queue_name)
        if not has_failure_hook(queue):
            return {}
        found = locate_all(core, [candidate.id for candidate in part])
        tries = [
            FailedTry(one.spot.lease, queue, one.message, one.state, error, reason, 0)
            for one in found
            if one is not None
            and isinstance(one.spot, InLease)
            and not _is_dead(core, one.spot)
            and not one.spot.lease.pinned
        ]
    return ask_on_failure(core, tries)


def drain(core: Core, name: str, *, limit: int) -> list[MessageInfo]:
    """Look and remove: the ready rows first, then what is ready behind the front of each stream.

    Removed in commits of one hold each. When one of them fails, what was removed before is returned: it
    exists nowhere else.
    """
    check_count(limit, "limit", most=MAX_PAGE)
    with core.lock:
        queue_id = core.queue(name).queue_id
    spots = first_ready(core, queue_id, b"", None, limit)
    drained: list[MessageInfo] = []
    commit = 0
    with core.looks.look() as look:
        try:
            for some, states in admitted(core, look, spots):
                found = zip(some, states, strict=True)
                for part in in_holds(
                    Candidate(row_id(spot.row), row_size(spot.row) + record_bytes(state), None)
                    for spot, state in found
                ):
                    while part:
                        infos, taken, commit = _drain_part(core, queue_id, part)
                        drained += infos
                        part = part[taken:]
        except FairleadError:
            if not drained:
                raise
    core.confirm(commit)
    return drained


def _drain_part(core: Core, queue_id: int, part: Sequence[Candidate]) -> tuple[list[MessageInfo], int, int]:
    """One hold of the lock: the messages removed, how many candidates it came to, and its commit."""
    with core.step():
        core.check_scan()
        moves = Moves(core, core.now_ms())
        found = [one for _, one in take_in_time(core, part)]
        ready = [one for one in found if one is not None and isinstance(one.spot, InReady | InStream)]
        here = [one for one in ready if spot_queue_id(one.spot) == queue_id]
        names, book = names_of(core), core.consumer_book
        infos = [info_of(one.message, one.state, one.spot, names, book) for one in here]  # type: ignore[arg-type]
        for one in here:
            moves.drop(one.spot)
        moves.commit()
        return infos, len(found), core.store.last_commit


def prune(
    core: Core, name: str, *, older_than: Duration, dry_run: bool, which: str = "all"
) -> OperatorResult:
    """What is over and only kept to be looked at: done or dead for so long."""
    age_ms = to_ms(older_than, "older_than")
    if which not in ("all", "done", "dead"):
        raise InvalidRequest("which", '"all", "done" or "dead"', which)
    with core.lock:
        queue = core.queue(name)
        dead_letters = queue if queue.is_dead_letter_queue else core.by_id[queue.record.dlq_id]
    done = OperatorResult(()) if which == "dead" else _prune_done(core, name, age_ms, dry_run)
    if which == "done" or done.more:
        return done
    dead = act(
        core,
        dead_letters.name,
        None,
        DeadFilter(older_than=older_than),
        drop,
        dry_run=dry_run,
        most=STEP_MESSAGES - len(done.changed),
    )
    return OperatorResult(done.changed + dead.changed, dead.skipped, dead.more)


def _prune_done(core: Core, name: str, age_ms: int, dry_run: bool) -> OperatorResult:
    """Under each hold the first ones that are left; a dry run walks on instead."""
    check_bool(dry_run, "dry_run")
    with core.lock:
        queue_id, until_ms = core.queue(name).queue_id, core.now_ms() - age_ms
    pruned: list[InDone] = []
    while True:
        with core.step():
            core.check_open()
            after = pruned[-1] if dry_run and pruned else None
            page = core.store.done(queue_id, after, until_ms, HOLD_MESSAGES)
            stops = core.waits_over or len(pruned) >= STEP_MESSAGES
            if stops or not page:
                commit = core.store.last_commit
                break
            page = page[: STEP_MESSAGES - len(pruned)]
            if not dry_run:
                _drop_done(core, queue_id, page)
        pruned += page
    if not dry_run:
        core.confirm(commit)
    return OperatorResult(tuple(show_id(row_id(spot.row)) for spot in pruned), (), bool(page))


def _drop_done(core: Core, queue_id: int, spots: Sequence[InDone]) -> None:
    moves = Moves(core, core.now_ms())
    for spot in spots:
        moves.drop(spot)
    moves.commit()
    queue = core.by_id.get(queue_id)
    if queue is not None:
        core.look_ahead(queue)


def release_stream(core: Core, queue_name: str, stream: str) -> bool:
    stream = check_text(stream, "stream", MAX_KEY_BYTES)
    with core.lock:
        queue = core.queue(queue_name)
        moves = Moves(core, core.now_ms())
        draft = moves.streams.get(queue.queue_id, stream)
        if draft.record is None:
            raise InvalidRequest("stream", f"a stream of queue {queue_name!r} with live messages", stream)
        if not draft.open_up():
            return False
        moves.commit()
        commit = core.store.last_commit
    core.confirm(commit)
    return True
