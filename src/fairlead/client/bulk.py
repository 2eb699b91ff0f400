"""The verbs that move many messages at once, and their forms with columns: `client.consumers`,
`client.staging` and `browse_batches`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

import msgspec
import pyarrow as pa

from fairlead.client.core import Core
from fairlead.client.long_poll import LongPoll
from fairlead.client.streamed import Piece, ask_for_batches
from fairlead.client.traces import Traces
from fairlead.errors import InvalidRequest, ProtocolMismatch
from fairlead.model.checks import check_each, check_messages
from fairlead.model.consumer import NumberedClaim
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.model.message import NewMessage
from fairlead.model.settle import Settlement
from fairlead.model.staging import Dead, Refusal, StageResult
from fairlead.surface import ConsumersGroup, StagingGroup
from fairlead.verbs.consumers import ConsumersClaim, ConsumersRead, ConsumersRecord
from fairlead.verbs.staging import StagingStage
from fairlead.wire.calls import BrowseCall, NumberedCall, ReadCall, RecordCall, StageCall, encode_call
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.messages import encode_messages
from fairlead.wire.records import plain
from fairlead.wire.schemas import BROWSED, DELIVERIES, MESSAGES, SETTLEMENTS
from fairlead.wire.settlements import encode_settlements, settlement_row
from fairlead.wire.whole import fill_defaults, fit

if TYPE_CHECKING:
    from fairlead.client.client import Client


class ClientConsumers(ConsumersGroup):
    """`client.consumers`: durable consumers and their numbered claims, also with columns."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._core = client._core

    def read_batches(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        payloads: bool = True,
        unsettled: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The deliveries of a slice as record batches of at most 10,000 rows or about 2 MiB, with every
        column of `wire.schemas.DELIVERIES`.

        Defaults are filled in. Null are headers, stream, seq, carry, failures, dead_since and source of rows
        that have none, and all payloads with `payloads=False`.
        """
        call = ReadCall(
            name, queue, generation, number, slice, slices, payloads=payloads, unsettled=unsettled
        )
        for _, batch in _pieces(self._core, call):
            yield fill_defaults(batch, DELIVERIES)

    def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """`record` with the columns of `wire.schemas.SETTLEMENTS`, as many of them as are needed."""
        _record(self._core, RecordCall(name, queue, generation, number, part), fit(batch, SETTLEMENTS))


class ClientStaging(StagingGroup):
    """`client.staging`: chunks of messages that become visible together, also with columns."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._core = client._core

    def stage_batch(
        self,
        token: str,
        chunk: str,
        queue: str,
        batch: pa.RecordBatch,
        *,
        ttl: Duration = "1d",
        skip_invalid: bool = False,
        dead: Dead | Sequence[Dead] | None = None,
    ) -> StageResult:
        """`stage` with the columns of `wire.schemas.MESSAGES`: `payload`, and as many of the others as are
        needed.
        """
        call = StageCall(token, chunk, queue, plain(ttl), skip_invalid, plain(dead))
        return _stage(self._core, call, fit(batch, MESSAGES))


def claim(core: Core, request: ConsumersClaim) -> NumberedClaim:
    poll = LongPoll(core, request.wait)

    def metadata() -> bytes:
        return encode_call(
            NumberedCall(
                request.name,
                request.queue,
                request.generation,
                request.number,
                request.limit,
                request.max_bytes,
                poll.left_ms(),
                request.up_to,
                request.max_per_stream,
            )
        )

    def once() -> NumberedClaim:
        answer, _ = core.ask("claim_numbered", metadata, wait_ms=poll.left_ms)
        if answer.claimed is None:
            raise ProtocolMismatch("a numbered claim", "an answer without one")
        return answer.claimed

    return poll.ask(once, found=lambda claimed: claimed.count)


def read_pages(core: Core, request: ConsumersRead) -> Iterator[Sequence[Delivery]]:
    call = ReadCall(
        request.name,
        request.queue,
        request.generation,
        request.number,
        request.slice,
        request.slices,
        request.after,
        unsettled=request.unsettled,
    )
    for answer, batch in _pieces(core, call):
        yield decode_deliveries(batch, answer.queues)


def record(core: Core, request: ConsumersRecord) -> None:
    items = request.items
    accepted = "Complete, Fail, Release, Start or Extend"
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)) or len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"a list of at most {MAX_BATCH_MESSAGES} {accepted}", type(items))
    for item in items:
        if not isinstance(item, get_args(Settlement)):
            raise InvalidRequest("items", accepted, item)
    call = RecordCall(request.name, request.queue, request.generation, request.number, request.part)
    _record(core, call, encode_settlements([settlement_row(item) for item in items]))


def _record(core: Core, call: RecordCall, batch: pa.RecordBatch) -> None:
    core.check()
    core.ask("record", encode_call(call), batch, name="consumers.record")


def stage(core: Core, traces: Traces, request: StagingStage) -> StageResult:
    call = StageCall(
        request.token,
        request.chunk,
        request.queue,
        plain(request.ttl),
        request.skip_invalid,
        plain(request.dead),
    )
    with traces.enqueuing(request.queue, request.messages) as carried:
        return _stage_messages(core, call, carried)


def _stage_messages(core: Core, call: StageCall, messages: Sequence[NewMessage]) -> StageResult:
    """A bad message is refused before anything is sent, or left out and listed by its row."""
    if call.skip_invalid is not True:
        return _stage(core, call, encode_messages(check_messages(messages)))
    checked, wrong = check_each(messages)
    left_out = {row: error.message for row, error in wrong}
    sent = [row for row in range(len(messages)) if row not in left_out]
    if (
        left_out
        and isinstance(call.dead, list)
        and len(call.dead) == len(messages)
        and all(isinstance(one, list) for one in call.dead)
    ):
        call = msgspec.structs.replace(call, dead=[call.dead[row] for row in sent])
    staged = _stage(core, call, encode_messages(checked))
    refused = left_out | {sent[refusal.row]: refusal.error for refusal in staged.refused}
    return msgspec.structs.replace(staged, refused=[Refusal(row, refused[row]) for row in sorted(refused)])


def _stage(core: Core, call: StageCall, batch: pa.RecordBatch) -> StageResult:
    core.check()
    answer, _ = core.ask("stage", encode_call(call), batch, name="staging.stage")
    if answer.staged is None:
        raise ProtocolMismatch("what was staged", "an answer without it")
    return answer.staged


def _pieces(core: Core, call: ReadCall) -> Iterator[Piece]:
    after = call.after

    def rest() -> bytes:
        return encode_call(msgspec.structs.replace(call, after=after))

    for answer, batch in ask_for_batches(core, "read", rest):
        after = batch.column("id")[-1].as_py()
        yield answer, batch


def browse_batches(core: Core, call: BrowseCall) -> Iterator[pa.RecordBatch]:
    after = call.after

    def rest() -> bytes:
        return encode_call(msgspec.structs.replace(call, after=after))

    for _, batch in ask_for_batches(core, "browse", rest):
        found = fill_defaults(batch, BROWSED)
        after = show_id(found.column("id")[-1].as_py())
        yield found
