"""Calls of queues' Lua hooks: outside the lock, before the transaction, on data read then. The transaction
checks again everything that matters, and takes the answers from `tx.hooks`.

A request that joins a transaction calls no hooks: the verb that opened the transaction calls them for all of
its requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.config import HookSettings
from fairlead.decide.retry import HookAnswer
from fairlead.engine.consumer_steps import failures_to_ask
from fairlead.engine.due_times import find_overdue
from fairlead.engine.hook_calls import ask_on_enqueue, decided_lane, to_answer
from fairlead.engine.memory import Memory
from fairlead.engine.moves import STEP_MESSAGES, expire_leases, expiry_error, runs_of
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import HookAnswers, Transaction
from fairlead.errors import InvalidRequest, Rejected
from fairlead.hooks import HOOK_FUNCTIONS, Hooks, OnEnqueueCall, OnFailureCall
from fairlead.model.checks import MessageColumns, check_columns
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.failure import FailureReason
from fairlead.model.handles import check_fail, read_handle
from fairlead.model.ids import find_id, show_id
from fairlead.model.lane import pack_lane
from fairlead.model.message import unpack_headers
from fairlead.model.names import Scoped
from fairlead.model.queue import QueueConfig, read_queue_options
from fairlead.model.settle import Fail
from fairlead.records.facts import ConfigChanged, QueueStored, StateFact
from fairlead.records.ids import BLOCK_MASK, find_number, id_of
from fairlead.request import Request
from fairlead.store.kv.port import Table
from fairlead.store.rows import consumer_key
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange, check_requests
from fairlead.verbs.queues import CreateQueue, UpdateQueue
from fairlead.verbs.settle import Nack, Settle

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: Requests whose scripts are checked, even while no queue has a script.
ASKS_ALWAYS = frozenset((CreateQueue, UpdateQueue))
#: A slow script may take its full time in each call, and no other due work is done meanwhile.
HOOKED_STEP = 100


class _Try(NamedTuple):
    """A failed delivery for which a hook is called."""

    number: int
    claim_id: int
    queue: Queue
    call: OnFailureCall


class Hooking:
    """The scripts of an engine's queues, and the calls for its requests and its timer."""

    def __init__(self, engine: Engine, settings: HookSettings) -> None:
        self._engine = engine
        self.hooks = Hooks(settings, engine.clock)
        #: Whether any queue has a script. Most engines have none, and pay only for this check.
        self.is_used = False
        self.hooks.load_config(dict(engine.memory.config))
        self._set_scripts(engine.memory.by_id.values())

    def notice(self, facts: Iterable[StateFact]) -> None:
        """Under the lock, once these facts are written."""
        for fact in facts:
            match fact:
                case QueueStored():
                    self._set_scripts([self._engine.memory.by_id[fact.record.queue_id]])
                case ConfigChanged():
                    for key, value in fact.entries.items():
                        self.hooks.set_config(key, value)

    def _set_scripts(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            for function in HOOK_FUNCTIONS:
                script = getattr(queue.record.config, function) or None
                self.hooks.set_script(queue.record.queue_id, function, script)
                self.is_used |= script is not None
        if self.is_used:
            self.is_used = any(_has_script(queue) for queue in self._engine.memory.by_id.values())

    # Without the lock

    def ask(self, requests: Sequence[Request[Any]]) -> HookAnswers:
        """Call the hooks for the messages and failures of these requests. Raises `HookInvalid` for a script
        that cannot run. An invalid request is refused by its verb, not here.
        """
        answers = HookAnswers()
        for request in requests:
            with contextlib.suppress(Rejected):
                self._ask_about(request, answers)
        return answers

    def _ask_about(self, request: Request[Any], answers: HookAnswers) -> None:
        match request:
            case CreateQueue() | UpdateQueue():
                self._check_scripts(request.options)
            case Exchange():
                for part in check_requests(request.requests):
                    self._ask_about(part, answers)
            case Enqueue():
                answers.messages[id(request)] = self._decide(request.queue, [request.message()])
            case EnqueueMany():
                answers.messages[id(request)] = self._decide(request.queue, request.messages)
            case Settle():
                answers.failures.update(self._ask_on_failure(self._tries_of(request.items)))
            case Nack():
                answers.failures.update(self._ask_on_failure(self._try_of(request)))

    def ask_overdue(self) -> HookAnswers:
        """For the timer: call `on_failure` for deliveries whose leases expired, and for members of a claim
        that no caller closes. Deliveries that need no call end first, so that a slow script does not delay
        them.
        """
        if not self.is_used:
            return HookAnswers()
        with self._engine.transaction() as tx:
            expire_leases(tx)
        with self._engine.transaction() as tx:
            memory, tries = tx.memory, list[_Try]()
            for lease in find_overdue(memory, tx.now_ms, STEP_MESSAGES):
                if not lease.terms.started or not asks_on_failure(memory.by_id[lease.terms.queue_id]):
                    continue
                # No more than the next step ends; the hook would be called for the others again.
                for run in runs_of(memory, lease)[: min(HOOKED_STEP, STEP_MESSAGES) - len(tries)]:
                    error = expiry_error(lease)
                    tries.append(self._try(run[0], error, FailureReason.TIMEOUT_EXCEEDED, 0))
            if left := memory.consumers.left_alone():
                tries += self._tries_in_claim(tx, left)
        return HookAnswers(failures=self._ask_on_failure(tries))

    def ask_about_claim(self, consumer: Scoped) -> HookAnswers:
        """For the next step of a numbered claim that is being closed."""
        if not self.is_used:
            return HookAnswers()
        with self._engine.transaction() as tx:
            record = tx.memory.records[Table.CONSUMERS].get(consumer_key(consumer.queue, consumer.name))
            tries = [] if record is None else self._tries_in_claim(tx, record)
        return HookAnswers(failures=self._ask_on_failure(tries))

    def _tries_in_claim(self, tx: Transaction, record: ConsumerRecord) -> list[_Try]:
        return [
            self._try(number, said.error, FailureReason(said.reason), said.progress)
            for number, said in islice(failures_to_ask(tx, record), HOOKED_STEP)
        ]

    def ask_about_leased(self, raw_ids: Sequence[bytes], error: str, reason: FailureReason) -> HookAnswers:
        """For an operator who fails leased messages."""
        if not self.is_used:
            return HookAnswers()
        with self._engine.transaction() as tx:
            found = {number: tx.memory.held.get(number) for number in tx.find_messages(raw_ids).values()}
            held = {
                number: lease
                for number, lease in found.items()
                if lease is not None and not lease.is_numbered
            }
            queues = {number: tx.memory.by_id[lease.terms.queue_id] for number, lease in held.items()}
            tries = [
                self._try(number, error, reason, 0) for number in held if asks_on_failure(queues[number])
            ]
        return HookAnswers(failures=self._ask_on_failure(tries))

    def ask_about_dead(self, raw_ids: Sequence[bytes]) -> HookAnswers:
        """For dead letters that return: they pass through the enqueue flow of their queue."""
        if not self.is_used:
            return HookAnswers()
        by_queue: dict[int, list[tuple[int, OnEnqueueCall]]] = {}
        with self._engine.transaction() as tx:
            memory, numbers = tx.memory, list(tx.find_messages(raw_ids).values())
            for number, state in zip(numbers, tx.states_of(numbers), strict=True):
                source = memory.by_id.get(state.source_queue_id)
                if state.source_queue_id and source is not None and source.record.config.on_enqueue:
                    chunk = memory.chunk_of(number)
                    size = chunk.columns.sizes[number & BLOCK_MASK]
                    call = OnEnqueueCall(unpack_headers(chunk.headers_of(number)), size)
                    by_queue.setdefault(state.source_queue_id, []).append((number, call))
            chunks = {number: memory.chunk_of(number) for asked in by_queue.values() for number, _ in asked}
            names = {queue_id: memory.by_id[queue_id].name for queue_id in by_queue}
        answers = HookAnswers()
        for queue_id, asked in by_queue.items():
            decisions = self.hooks.on_enqueue(queue_id, names[queue_id], [call for _, call in asked])
            for (number, _), decision in zip(asked, decisions, strict=True):
                lane, weight = chunks[number].lane_of(number), chunks[number].weight_of(number)
                answers.lanes[number] = decided_lane(pack_lane(lane[0], lane[1:]), weight, decision)
        return answers

    def _check_scripts(self, options: Mapping[str, Any]) -> None:
        """Refuse a script that does not compile or lacks its function at the call that sets it."""
        for function in HOOK_FUNCTIONS if isinstance(options, Mapping) else ():
            if options.get(function):
                read_queue_options({function: options[function]}, QueueConfig())
                self.hooks.check(options[function], function)

    def _decide(self, queue_name: object, messages: Any) -> MessageColumns:
        return self.ask_about_new(queue_name, check_columns(messages))

    def ask_about_new(self, queue_name: object, messages: MessageColumns) -> MessageColumns:
        """The messages with the results of the queue's `on_enqueue`."""
        with self._engine.transaction() as tx:
            queue = tx.queue(queue_name)
            queue_id, asks = queue.record.queue_id, bool(queue.record.config.on_enqueue)
        if not asks or not messages.length:
            return messages
        return ask_on_enqueue(self.hooks, queue_id, queue.name, messages)

    def _tries_of(self, items: object) -> list[_Try]:
        """The failures that need a call: an instruction takes precedence over the hook, and a stale lease
        needs none. The first item of a delivery counts, so the hook is called for that one only.
        """
        if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
            return []
        tries: dict[int, _Try] = {}
        with self._engine.transaction() as tx:
            for item in items:
                if not isinstance(item, Fail) or item.dead or (item.retry_in, item.close) != (None, None):
                    continue
                try:
                    raw_id, claim_id = read_handle(item.delivery)
                    said = check_fail(item)
                except InvalidRequest:
                    continue
                number = find_number(raw_id)
                if number is None or number in tries or not _is_asked(tx.memory, number, claim_id):
                    continue
                tries[number] = self._try(number, said.error, said.reason, said.progress)
        return list(tries.values())

    def _try_of(self, request: Nack) -> list[_Try]:
        raw_id = find_id(request.message_id)
        number = None if raw_id is None else find_number(raw_id)
        with self._engine.transaction() as tx:
            lease = None if number is None else tx.memory.held.get(number)
            if number is None or lease is None or not _is_asked(tx.memory, number, lease.terms.claim_id):
                return []
            try:
                said = check_fail(Fail(None, request.error, request.reason))  # type: ignore[arg-type]
            except InvalidRequest:
                return []
            return [self._try(number, said.error, said.reason, said.progress)]

    def _try(self, number: int, error: str, reason: FailureReason, progress: int) -> _Try:
        memory = self._engine.memory
        chunk, state, terms = memory.chunk_of(number), memory.state_of(number), memory.held[number].terms
        call = OnFailureCall(
            unpack_headers(chunk.headers_of(number)),
            show_id(id_of(chunk.prefix, number)),
            state.attempts + 1,
            error,
            reason.word,
            state.progress | progress,
        )
        return _Try(number, terms.claim_id, memory.by_id[terms.queue_id], call)

    def _ask_on_failure(self, tries: Iterable[_Try]) -> dict[tuple[int, int], HookAnswer | None]:
        """One batch of calls for each queue."""
        by_queue: dict[int, list[_Try]] = {}
        for one in tries:
            by_queue.setdefault(one.queue.record.queue_id, []).append(one)
        answers: dict[tuple[int, int], HookAnswer | None] = {}
        for queue_id, asked in by_queue.items():
            decisions = self.hooks.on_failure(queue_id, asked[0].queue.name, [one.call for one in asked])
            for one, decision in zip(asked, decisions, strict=True):
                answers[one.number, one.claim_id] = to_answer(decision)
        return answers


def _has_script(queue: Queue) -> bool:
    return bool(queue.record.config.on_enqueue or queue.record.config.on_failure)


def asks_on_failure(queue: Queue) -> bool:
    return bool(queue.record.config.on_failure)


def _is_asked(memory: Memory, number: int, claim_id: int) -> bool:
    lease = memory.held.get(number)
    # Only its consumer settles a member of a numbered claim.
    if lease is None or lease.is_numbered or lease.terms.claim_id != claim_id:
        return False
    return asks_on_failure(memory.by_id[lease.terms.queue_id])
