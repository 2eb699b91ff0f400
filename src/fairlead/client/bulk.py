"""Requests that travel as records, and verbs whose messages travel in columns: `client.consumers`,
`client.staging` and `browse_batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pyarrow as pa

from fairlead.client.core import Core, Repeat
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
from fairlead.model.settle import Settlement
from fairlead.model.staging import Dead, Refusal, StageResult
from fairlead.request import Answer, Request
from fairlead.surface import ConsumersGroup, StagingGroup
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersClaim, ConsumersRead, ConsumersRecord
from fairlead.verbs.staging import StagingStage
from fairlead.wire.calls import PagesCall, encode
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.messages import encode_messages
from fairlead.wire.numbered import Numbered
from fairlead.wire.plain import encode_fields, plain
from fairlead.wire.records import decode_result, encode_request
from fairlead.wire.schemas import BROWSED, DELIVERIES, MESSAGES, SETTLEMENTS
from fairlead.wire.settlement_rows import settlement_row
from fairlead.wire.settlements import encode_settlements
from fairlead.wire.whole import fill_defaults, fit

if TYPE_CHECKING:
    from fairlead.client.client import BulkClient


class ClientConsumers(ConsumersGroup):
    """`client.consumers`: durable consumers and their numbered claims, also with columns."""

    def __init__(self, client: BulkClient) -> None:
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
        request = ConsumersRead(name, queue, generation, number, slice, slices, unsettled)
        for _, batch in _pieces(self._core, request, payloads):
            yield fill_defaults(batch, DELIVERIES)

    def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """`record` with the columns of `wire.schemas.SETTLEMENTS`, as many of them as are needed."""
        request = ConsumersRecord(name, queue, generation, number, (), part)
        ask(self._core, request, fit(batch, SETTLEMENTS))


class ClientStaging(StagingGroup):
    """`client.staging`: chunks of messages that become visible together, also with columns."""

    def __init__(self, client: BulkClient) -> None:
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
        request = StagingStage(token, chunk, queue, (), ttl, skip_invalid, dead)
        return ask(self._core, request, fit(batch, MESSAGES))


def ask(
    core: Core,
    request: Request[Answer],
    batch: pa.RecordBatch | None = None,
    *,
    numbered: Numbered | None = None,
) -> Answer:
    """A request that travels as a record, with its columns beside it."""
    if numbered is None:
        return _ask(core, request, partial(encode_request, request), batch)
    return _ask(core, request, partial(encode_request, request, numbered), batch, repeat="by number")


def _ask(
    core: Core,
    request: Request[Answer],
    metadata: Callable[[], bytes],
    batch: pa.RecordBatch | None = None,
    wait_ms: Callable[[], int] = lambda: 0,
    repeat: Repeat = "never",
) -> Answer:
    verb = request.verb_name
    if request.is_repeatable():
        repeat = "freely"
    answer, _ = core.ask("request", metadata, batch, name=verb, wait_ms=wait_ms, repeat=repeat)
    try:
        result: Answer = decode_result(verb, answer.result)
    except msgspec.MsgspecError as wrong:
        raise ProtocolMismatch(f"an answer to {verb}", str(wrong)) from None
    return result


def claim(core: Core, request: ConsumersClaim) -> NumberedClaim:
    poll = LongPoll(core, request.wait)

    def metadata() -> bytes:
        wait = timedelta(milliseconds=poll.left_ms())
        return encode_request(msgspec.structs.replace(request, wait=wait))

    return poll.ask(
        lambda: _ask(core, request, metadata, wait_ms=poll.left_ms), found=lambda claimed: claimed.count
    )


def read_pages(core: Core, request: ConsumersRead) -> Iterator[Sequence[Delivery]]:
    for answer, batch in _pieces(core, request):
        yield decode_deliveries(batch, answer.queues)


def record(core: Core, request: ConsumersRecord) -> None:
    items = request.items
    accepted = "Complete, Fail, Release, Start or Extend"
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)) or len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"a list of at most {MAX_BATCH_MESSAGES} {accepted}", type(items))
    for item in items:
        if not isinstance(item, get_args(Settlement)):
            raise InvalidRequest("items", accepted, item)
    ask(core, request, encode_settlements([settlement_row(item) for item in items]))


def stage(core: Core, traces: Traces, request: StagingStage) -> StageResult:
    """A bad message is refused before anything is sent, or left out and listed by its row."""
    with traces.enqueuing(request.queue, request.messages) as messages:
        if request.skip_invalid is not True:
            return ask(core, request, encode_messages(check_messages(messages)))
        checked, wrong = check_each(messages)
        left_out = {row: error.message for row, error in wrong}
        sent = [row for row in range(len(messages)) if row not in left_out]
        if left_out:
            request = msgspec.structs.replace(request, dead=_dead_of(request.dead, sent, len(messages)))
        staged = ask(core, request, encode_messages(checked))
    refused = left_out | {sent[refusal.row]: refusal.error for refusal in staged.refused}
    return msgspec.structs.replace(staged, refused=[Refusal(row, refused[row]) for row in sorted(refused)])


def _dead_of(dead: Any, rows: Sequence[int], count: int) -> Any:
    """Of a reason for each of `count` messages those of these rows; anything else as it is."""
    told: Any = plain(dead)
    is_for_each = isinstance(told, list) and len(told) == count and all(isinstance(one, list) for one in told)
    return [told[row] for row in rows] if is_for_each else dead


def _pieces(core: Core, request: ConsumersRead, payloads: bool = True) -> Iterator[Piece]:
    after = request.after

    def rest() -> bytes:
        # Not a count of what has come: with `unsettled` there may be fewer before it by now.
        return _pages(msgspec.structs.replace(request, after=after), payloads)

    for answer, batch in ask_for_batches(core, "read", rest):
        after = batch.column("id")[-1].as_py()
        yield answer, batch


def browse_batches(core: Core, request: Browse, payloads: bool) -> Iterator[pa.RecordBatch]:
    after = request.after

    def rest() -> bytes:
        return _pages(msgspec.structs.replace(request, after=after), payloads)

    for _, batch in ask_for_batches(core, "browse", rest):
        found = fill_defaults(batch, BROWSED)
        after = show_id(found.column("id")[-1].as_py())
        yield found


def _pages(request: Request[Any], payloads: bool) -> bytes:
    return encode(PagesCall(encode_fields(request), payloads))
