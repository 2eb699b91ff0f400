"""Requests whose messages travel in columns: staging, and reading messages of a claim or a queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
import pyarrow as pa

from fairlead.client.flight.core import FlightCore
from fairlead.client.flight.streamed import Piece, ask_for_batches
from fairlead.client.flight.transport import FlightTransport
from fairlead.client.options import Options
from fairlead.client.tls import Tls
from fairlead.client.traces import Traces
from fairlead.errors import InvalidRequest, ProtocolMismatch
from fairlead.model.checks import check_each, check_messages
from fairlead.model.delivery import Delivery
from fairlead.model.ids import show_id
from fairlead.model.staging import Refusal, StageResult
from fairlead.request import Answer, Request
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersRead, ConsumersRecord
from fairlead.verbs.staging import StagingStage
from fairlead.wire.calls import PagesCall, WriteCall, encode
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.messages import encode_messages
from fairlead.wire.normalize import fill_defaults, fit
from fairlead.wire.plain import encode_fields, plain
from fairlead.wire.schemas import BROWSED, DELIVERIES, MESSAGES, SETTLEMENTS
from fairlead.wire.writes import decode_result, encode_write


def open_bulk(options: Options, tls: Tls | None, api_key: str | None, traces: Traces) -> Bulk:
    """A bulk client. Its first call connects."""
    transport = FlightTransport(options.address, tls=tls, api_key=api_key, timeout_ms=options.timeout_ms)
    return Bulk(FlightCore(options, transport), traces)


class Bulk:
    """Thread-safe."""

    def __init__(self, core: FlightCore, traces: Traces) -> None:
        self.core = core
        self._traces = traces

    def do(self, request: Request[Answer]) -> Answer:
        """Carry out a request that the table of verbs marks as bulk."""
        if isinstance(request, ConsumersRead):
            return cast(Answer, self.read(request))
        assert isinstance(request, StagingStage)
        return cast(Answer, self.stage(request))

    def read(self, request: ConsumersRead) -> Iterator[Sequence[Delivery]]:
        for answer, batch in self._read(request, payloads=True):
            yield decode_deliveries(batch, answer.queues)

    def read_batches(self, request: ConsumersRead, *, payloads: bool) -> Iterator[pa.RecordBatch]:
        for _, batch in self._read(request, payloads=payloads):
            yield fill_defaults(batch, DELIVERIES)

    def record_batch(self, request: ConsumersRecord, batch: pa.RecordBatch) -> None:
        self.ask(request, fit(batch, SETTLEMENTS))

    def stage(self, request: StagingStage) -> StageResult:
        """Stage messages. An invalid message is refused before anything is sent, or is left out and listed by
        its row.
        """
        with self._traces.enqueuing(request.queue, request.messages) as messages:
            if request.skip_invalid is not True:
                return self.ask(request, encode_messages(check_messages(messages)))
            checked, wrong = check_each(messages)
            left_out = {row: error.message for row, error in wrong}
            sent = [row for row in range(len(messages)) if row not in left_out]
            if left_out:
                dead = _dead_of(request.dead, sent, len(messages))
                request = msgspec.structs.replace(request, dead=dead)
            staged = self.ask(request, encode_messages(checked))
        refused = left_out | {sent[refusal.row]: refusal.error for refusal in staged.refused}
        return msgspec.structs.replace(
            staged, refused=[Refusal(row, refused[row]) for row in sorted(refused)]
        )

    def stage_batch(self, request: StagingStage, batch: pa.RecordBatch) -> StageResult:
        return self.ask(request, fit(batch, MESSAGES))

    def browse_batches(self, request: Browse, *, payloads: bool) -> Iterator[pa.RecordBatch]:
        after = request.after

        def rest() -> bytes:
            return _pages(msgspec.structs.replace(request, after=after), payloads)

        for _, batch in ask_for_batches(self.core, "browse", rest):
            found = fill_defaults(batch, BROWSED)
            after = show_id(found.column("id")[-1].as_py())
            yield found

    def ask(self, request: Request[Answer], batch: pa.RecordBatch) -> Answer:
        """The answer to a request with its rows beside it. The request may be sent twice."""
        answer = self.core.ask("write", encode_write(request), batch)
        try:
            result: Answer = decode_result(request.verb_name, answer.result)
        except msgspec.MsgspecError as wrong:
            raise ProtocolMismatch(f"an answer to {request.verb_name}", str(wrong)) from None
        return result

    def greet(self) -> None:
        """Raise unless a Flight door answers. The door answers by refusing a request without a verb."""
        with suppress(InvalidRequest):
            self.core.ask("write", encode(WriteCall("")), None)

    def close(self) -> None:
        self.core.close()

    def _read(self, request: ConsumersRead, *, payloads: bool) -> Iterator[Piece]:
        after = request.after

        def rest() -> bytes:
            # An id, not a count of received rows: with `unsettled` there may be fewer rows before it by now.
            return _pages(msgspec.structs.replace(request, after=after), payloads)

        for answer, batch in ask_for_batches(self.core, "read", rest):
            after = batch.column("id")[-1].as_py()
            yield answer, batch


def _dead_of(dead: Any, rows: Sequence[int], count: int) -> Any:
    """The reasons of these rows, if `dead` has one reason for each of `count` messages; any other value
    unchanged.
    """
    told: Any = plain(dead)
    is_for_each = isinstance(told, list) and len(told) == count and all(isinstance(one, list) for one in told)
    return [told[row] for row in rows] if is_for_each else dead


def _pages(request: Request[Any], payloads: bool) -> bytes:
    return encode(PagesCall(encode_fields(request), payloads))
