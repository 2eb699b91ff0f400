"""Every verb through the door of Arrow Flight, as a client in another language would send it: nothing is gathered,
repeated or kept alive. For measurements and for tests of the door.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from fairlead.model.checks import CheckedMessage, check_messages
from fairlead.model.delivery import Delivery
from fairlead.model.names import check_queue_name
from fairlead.request import Request
from fairlead.surface import Surface
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersRead, ConsumersRecord
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange, check_requests
from fairlead.verbs.settle import Settle
from fairlead.verbs.staging import StagingStage
from fairlead.wire.calls import (
    Answer,
    ClaimCall,
    EnqueueCall,
    ExchangeCall,
    Open,
    PagesCall,
    SettleCall,
    decode,
    encode,
)
from fairlead.wire.columns import make_batch, nulls
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.faults import error_of
from fairlead.wire.messages import decode_ids, encode_messages, message_columns
from fairlead.wire.plain import encode_fields, plain
from fairlead.wire.records import decode_result, encode_request
from fairlead.wire.requests import pack
from fairlead.wire.schemas import EXCHANGE, NOTHING
from fairlead.wire.settlement_rows import Row, settlement_rows
from fairlead.wire.settlements import decode_results, encode_settlements, read_results, settlement_columns

Reply = tuple[Answer, pa.RecordBatch | None]


class FlightClient(Surface):
    """By one thread at a time."""

    def __init__(self, address: str, api_key: str | None = None) -> None:
        self._client = flight.connect(f"grpc://{address}")
        headers = [(b"authorization", f"Bearer {api_key}".encode())] if api_key else []
        self._options = flight.FlightCallOptions(headers=headers)
        self._channels: dict[str, tuple[Any, Any]] = {}

    def do(self, request: Request[Any]) -> Any:
        if isinstance(request, Enqueue):
            return self._enqueue(request.queue, [request.message()])[0]
        if isinstance(request, EnqueueMany):
            return self._enqueue(request.queue, request.messages)
        if isinstance(request, Settle):
            answer, body = self._ask(
                "settle", encode(SettleCall(None)), encode_settlements(_rows(request.items))
            )
            assert body is not None
            return decode_results(body)
        if isinstance(request, Claim):
            answer, body = self._ask("claim", encode(_claim_call(request)))
            return [] if body is None else decode_deliveries(body, answer.queues)
        if isinstance(request, Exchange):
            return self._exchange(check_requests(request.requests))
        if isinstance(request, ConsumersRead):
            return self._read(request)
        batch = None
        if isinstance(request, StagingStage):
            batch = encode_messages(check_messages(request.messages))
        elif isinstance(request, ConsumersRecord):
            batch = encode_settlements(_rows(request.items))
        answer, _ = self._ask("request", encode_request(request), batch)
        return decode_result(request.verb_name, answer.result)

    def close(self) -> None:
        for writer, reader in self._channels.values():
            reader.cancel()
            with contextlib.suppress(pa.ArrowException):
                writer.close()
        self._client.close()

    def __enter__(self) -> FlightClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(self, queue: str, messages: Sequence[Any]) -> list[str]:
        call = EnqueueCall([(check_queue_name(queue), len(messages))], None)
        _, body = self._ask("enqueue", encode(call), encode_messages(check_messages(messages)))
        assert body is not None
        return decode_ids(body)

    def _exchange(self, requests: Sequence[Request[Any]]) -> list[Any]:
        rows = [row for one in requests if isinstance(one, Settle) for row in _rows(one.items)]
        puts = [
            (one.queue, check_messages(_messages(one)))
            for one in requests
            if isinstance(one, Enqueue | EnqueueMany)
        ]
        claims = [_fields_of(one) for one in requests if isinstance(one, Claim)]
        call = ExchangeCall(
            len(rows),
            [(check_queue_name(queue), len(put)) for queue, put in puts],
            claims[0] if claims else None,
        )
        batch = _exchange_batch(rows, [message for _, put in puts for message in put])
        answer, body = self._ask("exchange", encode(call), batch)
        settled, ids = iter(read_results(answer.settled)), iter(answer.ids)
        deliveries = [] if body is None else decode_deliveries(body, answer.queues)
        return [_part_of(one, settled, ids, deliveries) for one in requests]

    def _read(self, request: ConsumersRead) -> Iterator[Sequence[Delivery]]:
        writer, reader = self._channel("read")
        writer.write_metadata(pack(encode(PagesCall(encode_fields(request), True)), None))
        while True:
            answer, body = _receive(reader)
            if body is not None and body.num_rows:
                yield decode_deliveries(body, answer.queues)
            if answer.done:
                return

    def _ask(self, verb: str, metadata: bytes, batch: pa.RecordBatch | None = None) -> Reply:
        writer, reader = self._channel(verb)
        writer.write_metadata(pack(metadata, batch))
        return _receive(reader)

    def _channel(self, verb: str) -> tuple[Any, Any]:
        if verb not in self._channels:
            writer, reader = self._client.do_exchange(
                flight.FlightDescriptor.for_command(encode(Open(verb))), self._options
            )
            writer.begin(NOTHING)
            self._channels[verb] = (writer, reader)
        return self._channels[verb]


def _receive(reader: flight.FlightStreamReader) -> Reply:
    chunk = reader.read_chunk()
    answer = decode(chunk.app_metadata.to_pybytes(), Answer)
    if answer.error is not None:
        raise error_of(answer.error)
    return answer, chunk.data


def _messages(request: Enqueue | EnqueueMany) -> Sequence[Any]:
    return [request.message()] if isinstance(request, Enqueue) else request.messages


def _rows(items: Sequence[Any]) -> list[Row]:
    rows, refused = settlement_rows(items)
    assert not refused, refused
    return rows


def _fields_of(request: Claim) -> dict[str, object]:
    return {name: plain(value) for name, value in msgspec.structs.asdict(request).items()}


def _claim_call(request: Claim) -> ClaimCall:
    return ClaimCall(
        plain(request.queue),
        request.limit,
        request.patience_ms() or 0,
        request.consumer,
        request.max_per_stream,
        request.token,
        request.started,
    )


def _exchange_batch(rows: Sequence[Row], messages: Sequence[CheckedMessage]) -> pa.RecordBatch:
    """Settlements above, messages below; each half of the columns is null in the other half of the rows."""
    columns = {
        name: pa.concat_arrays([column, nulls(len(messages), column.type)])
        for name, column in settlement_columns(rows).items()
    } | {
        name: pa.concat_arrays([nulls(len(rows), column.type), column])
        for name, column in message_columns(messages).items()
    }
    return make_batch(EXCHANGE, len(rows) + len(messages), columns)


def _part_of(
    request: Request[Any], settled: Iterator[Any], ids: Iterator[str], deliveries: list[Delivery]
) -> object:
    if isinstance(request, Settle):
        return list(islice(settled, len(request.items)))
    if isinstance(request, EnqueueMany):
        return list(islice(ids, len(request.messages)))
    return next(ids) if isinstance(request, Enqueue) else deliveries
