"""From a request on the wire to a request of the table, and its answer back. One function per kind of channel.

The layers and the engine decide what is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa
from msgspec.structs import astuple, replace

from fairlead.errors import InvalidRequest
from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.delivery import Delivery
from fairlead.model.message import NewMessage
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Settle
from fairlead.wire.calls import (
    Answer,
    ClaimCall,
    EnqueueCall,
    ExchangeCall,
    SettleCall,
    decode,
)
from fairlead.wire.columns import Columns
from fairlead.wire.messages import decode_messages, encode_ids
from fairlead.wire.numbered import Numbered
from fairlead.wire.records import decode_call, encode_result, request_of
from fairlead.wire.rows import read_message_rows
from fairlead.wire.schemas import EXCHANGE
from fairlead.wire.settlement_rows import read_settlement_rows
from fairlead.wire.settlements import decode_settlements, encode_results, read_settlements

#: A waiting claim is looked after by its client at least this often, so that a client that vanished is
#: noticed.
_MOST_WAIT_MS = 60_000
#: How many deliveries of a stream travel together: few enough that the first is on its way soon.
_STREAMED = 500
_MOST_CREDIT = 100_000

T = TypeVar("T")
Answered = tuple[Answer, pa.RecordBatch | None, list[Delivery]]


def enqueue(broker: AdmittedCaller, metadata: bytes, batch: pa.RecordBatch | None) -> Answered:
    call = decode(metadata, EnqueueCall)
    messages: Sequence[NewMessage]
    messages = decode_messages(_rows(batch)) if call.rows is None else read_message_rows(call.rows)
    requests = _by_queue(messages, call.queues)
    if len(requests) == 1:
        ids = _do(broker, requests[0], call)
    else:
        done = _do(broker, Exchange(requests), call)
        ids = [message_id for part in done for message_id in part]
    return (Answer(), encode_ids(ids), []) if call.rows is None else (Answer(ids=ids), None, [])


def settle(broker: AdmittedCaller, metadata: bytes, batch: pa.RecordBatch | None) -> Answered:
    call = decode(metadata, SettleCall)
    items = decode_settlements(_rows(batch)) if call.rows is None else read_settlement_rows(call.rows)
    results = _do(broker, Settle(items), call)
    now_ms = broker.now_ms()
    if call.rows is not None:
        return Answer(now_ms=now_ms, settled=[astuple(result) for result in results]), None, []
    return Answer(now_ms=now_ms), encode_results(results), []


def exchange(broker: AdmittedCaller, metadata: bytes, batch: pa.RecordBatch | None) -> Answered:
    call = decode(metadata, ExchangeCall)
    rows = _rows(batch)
    split = call.settles
    if not 0 <= split <= rows.num_rows or (split < rows.num_rows and not call.queues):
        raise InvalidRequest(
            "settles and queues", f"{rows.num_rows} rows in all", [call.settles, call.queues]
        )
    items = read_settlements(Columns(rows.slice(0, split), EXCHANGE)) if split else []
    messages = decode_messages(rows.slice(split), EXCHANGE) if call.queues else []
    requests: list[Request[Any]] = [Settle(items), *_by_queue(messages, call.queues)]
    if call.claim is not None:
        requests.append(read_claim(call.claim))
    settled, *parts = _do(broker, Exchange(requests), call)
    deliveries = parts.pop() if call.claim is not None else []
    ids = [message_id for part in parts for message_id in part]
    return Answer(settled=[astuple(result) for result in settled], ids=ids), None, deliveries


def read_claim(fields: object) -> Claim:
    try:
        return Claim(**fields)  # type: ignore[arg-type]
    except TypeError as wrong:
        raise InvalidRequest("claim", "the fields of a claim", str(wrong)) from None


def claim(broker: AdmittedCaller, call: ClaimCall, limit: int, wait_ms: float) -> list[Delivery]:
    wait = timedelta(milliseconds=min(max(wait_ms, 0), _MOST_WAIT_MS))
    asked = Claim(call.queue, limit, wait, call.consumer, call.max_per_stream, call.token, call.started)
    return _do(broker, asked, call)


def claim_by_credit(broker: AdmittedCaller, call: ClaimCall) -> Iterator[list[Delivery]]:
    """As messages become claimable, until the credit is used up or the wait is over."""
    if not 0 < call.credit <= _MOST_CREDIT:
        raise InvalidRequest("credit", f"a whole number from 1 to {_MOST_CREDIT}", call.credit)
    if call.token is not None:
        raise InvalidRequest(
            "token", "None with credit: what a stream has sent, it does not send again", call.token
        )
    if call.session is not None:
        raise InvalidRequest("session", "none with credit: a stream has many answers", call.session)
    left, until = call.credit, time.monotonic() + min(call.wait_ms, _MOST_WAIT_MS) / 1000
    while left:
        deliveries = claim(broker, call, min(left, _STREAMED), (until - time.monotonic()) * 1000)
        if not deliveries:
            return
        left -= len(deliveries)
        yield deliveries


def request(broker: AdmittedCaller, metadata: bytes, batch: pa.RecordBatch | None) -> Answered:
    """A request that travels as a record. Its answer travels as one, too."""
    call = decode_call(metadata)
    asked = request_of(call, batch)
    if (asked.patience_ms() or 0) > _MOST_WAIT_MS:
        asked = replace(asked, wait=timedelta(milliseconds=_MOST_WAIT_MS))
    return Answer(result=encode_result(_do(broker, asked, call))), None, []


ANSWERS: dict[str, Callable[[AdmittedCaller, bytes, pa.RecordBatch | None], Answered]] = {
    "enqueue": enqueue,
    "settle": settle,
    "exchange": exchange,
    "request": request,
}


def _do(broker: AdmittedCaller, request: Request[T], call: Numbered) -> T:
    if call.session is None:
        return broker.do(request)
    return broker.once(request, session=call.session, number=call.number, arrived=call.arrived)


def _rows(batch: pa.RecordBatch | None) -> pa.RecordBatch:
    if batch is None:
        raise InvalidRequest("batch", "a record batch", None)
    return batch


def _by_queue(messages: Sequence[NewMessage], queues: list[tuple[Any, int]]) -> list[EnqueueMany]:
    parts = []
    at = 0
    for queue, count in queues:
        if not isinstance(queue, str) or not 0 <= count <= len(messages) - at:
            raise InvalidRequest("queues", f"names of {len(messages)} rows in all", queues)
        parts.append(EnqueueMany(queue, messages[at : at + count]))
        at += count
    if at != len(messages):
        raise InvalidRequest("queues", f"names of {len(messages)} rows in all", queues)
    return parts
