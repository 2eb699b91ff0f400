"""How each request reaches the server: what is checked before it is sent, what travels, what comes back.

Most requests travel as records. The verbs that every message passes have channels of their own, with columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from secrets import token_hex
from typing import Any, cast

import msgspec
import pyarrow as pa

from fairlead.client import bulk
from fairlead.client.core import Asked, Core, Repeat
from fairlead.client.gather import Gatherer
from fairlead.client.heartbeat import Heartbeat
from fairlead.client.long_poll import LongPoll
from fairlead.client.settling import Results, Said, Settling, check_items
from fairlead.client.traces import Traces
from fairlead.errors import ProtocolMismatch
from fairlead.model.checks import CheckedMessage, check_messages
from fairlead.model.delivery import Delivery
from fairlead.model.message import NewMessage
from fairlead.model.names import check_queue_name
from fairlead.model.settle import Extend, SettleResult
from fairlead.request import Answer, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersClaim, ConsumersRead, ConsumersRecord
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange, check_requests
from fairlead.verbs.sessions import check_accepted, session_rule
from fairlead.verbs.settle import Settle
from fairlead.verbs.staging import StagingStage
from fairlead.wire.calls import ClaimCall, EnqueueCall, ExchangeCall, SettleCall, encode, encode_call
from fairlead.wire.columns import make_batch, nulls
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.messages import decode_ids, encode_messages, message_columns
from fairlead.wire.numbered import Numbered
from fairlead.wire.plain import plain
from fairlead.wire.rows import FEW_BYTES, FEW_ROWS, message_rows, read_delivery_rows
from fairlead.wire.schemas import EXCHANGE, MESSAGES, SETTLEMENTS
from fairlead.wire.settlement_rows import Row, settlement_rows
from fairlead.wire.settlements import decode_results, encode_settlements, read_results, settlement_columns


class Put(msgspec.Struct, frozen=True, gc=False):
    """The messages of one call."""

    queue: str
    messages: list[CheckedMessage]
    bytes: int

    @property
    def items(self) -> int:
        return len(self.messages)

    @classmethod
    def of(cls, queue: str, messages: Sequence[NewMessage]) -> Put:
        """Refuses what the engine would refuse, in its words; whether there is such a queue is for the server
        to say.
        """
        checked = check_messages(messages)
        name = check_queue_name(queue)
        return cls(name, checked, sum([len(message.payload) + len(message.headers) for message in checked]))


class Requests:
    """What a client says to its server, gathered; and the leases it holds there."""

    def __init__(self, core: Core, traces: Traces) -> None:
        self.core = core
        self.traces = traces
        self.enqueues: Gatherer[Put, list[str]] = Gatherer(self._send_enqueues, core.crew, "enqueue", core)
        self.settles: Gatherer[Said, Results] = Gatherer(self._send_settles, core.crew, "settle", core)
        self.heartbeat = Heartbeat(self._send_extends, core.clock, core.options.heartbeat_cap_ms)
        self._senders: dict[type[Request[Any]], Callable[[Any], Any]] = {
            Enqueue: self.enqueue,
            EnqueueMany: self.enqueue_many,
            Settle: self.settle,
            Claim: self.claim,
            Exchange: self.exchange,
            ConsumersClaim: partial(bulk.claim, core),
            ConsumersRead: partial(bulk.read_pages, core),
            ConsumersRecord: partial(bulk.record, core),
            StagingStage: partial(bulk.stage, core, traces),
        }

    def do(self, request: Request[Answer]) -> Answer:
        send = self._senders.get(type(request))
        return bulk.ask(self.core, request) if send is None else cast(Answer, send(request))

    def enqueue(self, request: Enqueue) -> str:
        return self.enqueue_many(EnqueueMany(request.queue, [request.message()]))[0]

    def enqueue_many(self, request: EnqueueMany) -> list[str]:
        with self.traces.enqueuing(request.queue, request.messages) as carried:
            return self.enqueues.call(Put.of(request.queue, carried))

    def settle(self, request: Settle) -> list[SettleResult]:
        settling = Settling(self.heartbeat, request.items)
        if not settling.said.rows:
            return settling.finish(([], 0))
        try:
            results = self.settles.call(settling.said)
        except BaseException:
            settling.undo()
            raise
        return settling.finish(results)

    def claim(self, request: Claim, numbered: Numbered | None = None) -> list[Delivery]:
        """Repeated after a lost answer it gives the same deliveries, because it has a token or a number."""
        core, poll = self.core, LongPoll(self.core, request.wait)
        call = ClaimCall(
            _plain_names(request.queue),
            request.limit,
            0,
            self._consumer_of(request),
            request.max_per_stream,
            token_hex(16) if request.token is None and numbered is None else request.token,
            request.started,
            in_rows=True,
            **_fields_of(numbered),
        )
        repeat: Repeat = "freely" if numbered is None else "by number"

        def metadata() -> bytes:
            return encode_call(msgspec.structs.replace(call, wait_ms=poll.left_ms()))

        return poll.ask(
            lambda: self.deliveries(core.ask("claim", metadata, wait_ms=poll.left_ms, repeat=repeat)),
            found=bool,
        )

    def once(self, request: Request[Answer], numbered: Numbered) -> Answer:
        """In a session of the caller's own, alone: it is not gathered with other calls."""
        if isinstance(request, Exchange):
            return cast(Answer, self.exchange(request, numbered))
        if isinstance(request, Claim):
            return cast(Answer, self.claim(request, numbered))
        if isinstance(request, (Enqueue, EnqueueMany, Settle)):
            (answer,) = self.exchange(Exchange([request]), numbered)
            return cast(Answer, answer)
        if type(request) in self._senders:
            # These have many steps.
            check_accepted(request, session_rule(type(request), is_one_transaction=False))
            return self.do(request)
        return bulk.ask(self.core, request, numbered=numbered)

    def exchange(self, request: Exchange, numbered: Numbered | None = None) -> list[Any]:
        """Outside of the caller's sessions it gets a number in ours, so that it too may be repeated after a lost answer."""
        requests = check_requests(request.requests)
        settles = [check_items(one.items) for one in requests if isinstance(one, Settle)]
        puts = [Put.of(queue, messages) for queue, messages in self.traces.carried(_enqueues(requests))]
        claim = next((self._claim_fields(one) for one in requests if isinstance(one, Claim)), None)
        settling = Settling(self.heartbeat, [item for items in settles for item in items])
        rows, messages = settling.said.rows, [message for put in puts for message in put.messages]

        def metadata(place: Numbered) -> bytes:
            queues = [(put.queue, put.items) for put in puts]
            return encode_call(ExchangeCall(len(rows), queues, claim, **_fields_of(place)))

        batch = _exchange_batch(rows, messages)
        try:
            if numbered is None:
                answer, body = self.core.sessions.ask("exchange", metadata, batch)
            else:
                answer, body = self.core.ask("exchange", metadata(numbered), batch, repeat="by number")
        except BaseException:
            settling.undo()
            raise
        settled = iter(settling.finish((read_results(answer.settled), answer.now_ms)))
        ids, deliveries = iter(answer.ids), self.deliveries((answer, body))
        return [_part_of(one, settled, ids, deliveries) for one in requests]

    def _claim_fields(self, request: Claim) -> dict[str, object]:
        named = msgspec.structs.replace(
            request, queue=_plain_names(request.queue), consumer=self._consumer_of(request)
        )
        return {field: plain(value) for field, value in msgspec.structs.asdict(named).items()}

    def _consumer_of(self, request: Claim) -> str:
        return self.core.options.consumer if request.consumer == "" else request.consumer

    def deliveries(self, asked: Asked) -> list[Delivery]:
        """From now on they are kept alive."""
        answer, body = asked
        if answer.rows:
            found = read_delivery_rows(answer.rows, answer.queues)
        elif body is not None and body.num_rows:
            found = decode_deliveries(body, answer.queues)
        else:
            return []
        self.heartbeat.hold(found, answer.now_ms)
        return found

    def _send_enqueues(self, puts: Sequence[Put], ends_ms: int) -> list[list[str]]:
        by_queue: dict[str, list[CheckedMessage]] = {}
        for put in puts:
            by_queue.setdefault(put.queue, []).extend(put.messages)
        queues = [(queue, len(messages)) for queue, messages in by_queue.items()]
        messages = [message for messages in by_queue.values() for message in messages]
        few = len(messages) <= FEW_ROWS and sum([put.bytes for put in puts]) <= FEW_BYTES
        rows, batch = (message_rows(messages), None) if few else (None, encode_messages(messages))
        answer, body = self.core.sessions.ask(
            "enqueue",
            lambda place: encode(EnqueueCall(queues, rows, **_fields_of(place))),
            batch,
            ends_ms=ends_ms,
        )
        ids = decode_ids(body) if body is not None else answer.ids
        if len(ids) != len(messages):
            raise ProtocolMismatch(f"{len(messages)} ids", f"{len(ids)}")
        start, at = 0, {}
        for queue, count in queues:
            at[queue] = start
            start += count
        given = []
        for put in puts:
            first = at[put.queue]
            at[put.queue] = first + put.items
            given.append(ids[first : first + put.items])
        return given

    def _send_settles(self, said: Sequence[Said], ends_ms: int) -> list[Results]:
        rows = [row for one in said for row in one.rows]
        few, batch = (
            (rows, None)
            if len(rows) <= FEW_ROWS and sum([one.bytes for one in said]) <= FEW_BYTES
            else (None, encode_settlements(rows))
        )
        answer, body = self.core.sessions.ask(
            "settle", lambda place: encode(SettleCall(few, **_fields_of(place))), batch, ends_ms=ends_ms
        )
        results = decode_results(body) if body is not None else read_results(answer.settled)
        if len(results) != len(rows):
            raise ProtocolMismatch(f"{len(rows)} results", f"{len(results)}")
        given: list[Results] = []
        at = 0
        for one in said:
            given.append((results[at : at + one.items], answer.now_ms))
            at += one.items
        return given

    def _send_extends(self, extends: Sequence[Extend]) -> Callable[[], Results]:
        return self.settles.submit(Said(settlement_rows(extends)[0])).result


def _exchange_batch(rows: Sequence[Row], messages: Sequence[CheckedMessage]) -> pa.RecordBatch:
    """Settlements above, messages below; each half of the columns is null in the other half of the rows."""
    columns = {
        name: pa.concat_arrays([column, nulls(len(messages), column.type)])
        for name, column in settlement_columns(rows).items()
    } | {
        name: pa.concat_arrays([nulls(len(rows), column.type), column])
        for name, column in message_columns(messages).items()
    }
    assert set(columns) <= {*SETTLEMENTS.names, *MESSAGES.names}
    return make_batch(EXCHANGE, len(rows) + len(messages), columns)


def _enqueues(requests: Sequence[Request[Any]]) -> list[tuple[str, Sequence[NewMessage]]]:
    """The queue and the messages of each request that enqueues."""
    found: list[tuple[str, Sequence[NewMessage]]] = []
    for one in requests:
        if isinstance(one, EnqueueMany):
            found.append((one.queue, one.messages))
        elif isinstance(one, Enqueue):
            found.append((one.queue, [one.message()]))
    return found


def _part_of(
    request: Request[Any], settled: Iterator[SettleResult], ids: Iterator[str], deliveries: list[Delivery]
) -> object:
    """The part of an exchange's answer that belongs to this request."""
    if isinstance(request, Settle):
        return list(islice(settled, len(request.items)))
    if isinstance(request, EnqueueMany):
        return list(islice(ids, len(request.messages)))
    return next(ids) if isinstance(request, Enqueue) else deliveries


def _fields_of(numbered: Numbered | None) -> dict[str, Any]:
    if numbered is None:
        return {}
    return {"session": numbered.session, "number": numbered.number, "arrived": numbered.arrived}


def _plain_names(queue: str | Sequence[str]) -> object:
    return list(queue) if isinstance(queue, (tuple, list)) else queue
