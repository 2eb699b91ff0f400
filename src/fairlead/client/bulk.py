"""`client.consumers` and `client.staging`: what is read and written in bulk, and so that a repetition changes
nothing.
"""
# mypy: disable-error-code="no-any-return"
# What an admin verb gives is known from the table in wire/views.py, which types do not see.

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from fairlead.client.core import Core
from fairlead.client.long_poll import LongPoll
from fairlead.client.streamed import Piece, ask_for_batches
from fairlead.errors import InvalidRequest, ProtocolMismatch
from fairlead.model.checks import check_each, check_messages
from fairlead.model.consumer import CloseResult, ConsumerInfo, NumberedClaim, TakenUp, Unspoken
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_CLAIM
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, Extend, Fail, Release, Start
from fairlead.model.staging import Dead, PublishResult, Refusal, StagedWrite, StageResult
from fairlead.wire.calls import BrowseCall, NumberedCall, ReadCall, RecordCall, StageCall, encode_call
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.messages import encode_messages
from fairlead.wire.schemas import BROWSED, DELIVERIES, MESSAGES, SETTLEMENTS
from fairlead.wire.settlements import encode_settlements, settlement_row
from fairlead.wire.views import plain
from fairlead.wire.whole import fill_defaults, fit

if TYPE_CHECKING:
    from fairlead.client.client import Client


class ClientConsumers:
    """`client.consumers`: durable consumers and their numbered claims."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._core = client._core

    def register(
        self, name: str, queue: str, *, ttl: Duration = "7d", unspoken: Unspoken = "complete"
    ) -> ConsumerInfo:
        return self._client._admin("consumers.register", name=name, queue=queue, ttl=ttl, unspoken=unspoken)

    def claim(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        limit: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        wait: Duration | None = None,
        up_to: int | None = None,
        max_per_stream: int = MAX_CLAIM,
    ) -> NumberedClaim:
        core = self._core
        core.check()
        poll = LongPoll(core, wait)

        def metadata() -> bytes:
            return encode_call(
                NumberedCall(
                    name, queue, generation, number, limit, max_bytes, poll.left_ms(), up_to, max_per_stream
                )
            )

        def once() -> NumberedClaim:
            answer, _ = core.ask("claim_numbered", metadata, wait_ms=poll.left_ms)
            if answer.claimed is None:
                raise ProtocolMismatch("a numbered claim", "an answer without one")
            return answer.claimed

        return poll.ask(once, found=lambda claimed: claimed.count)

    def read(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
    ) -> Iterator[Delivery]:
        for page in self._read_pages(
            name, queue, generation, number, slice=slice, slices=slices, unsettled=unsettled
        ):
            yield from page

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
        for _, batch in _pieces(
            self._core,
            ReadCall(name, queue, generation, number, slice, slices, payloads=payloads, unsettled=unsettled),
        ):
            yield fill_defaults(batch, DELIVERIES)

    def record(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        items: Sequence[Complete | Fail | Release | Start | Extend],
        *,
        part: str = "",
    ) -> None:
        if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
            raise InvalidRequest("items", "a list of Complete, Fail, Release, Start, Extend", type(items))
        self._record(
            RecordCall(name, queue, generation, number, part),
            encode_settlements([settlement_row(item) for item in items]),
        )

    def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """`record` with the columns of `wire.schemas.SETTLEMENTS`, as many of them as are needed."""
        self._record(RecordCall(name, queue, generation, number, part), fit(batch, SETTLEMENTS))

    def take_up(
        self, name: str, queue: str, generation: int, number: int, *, slice: int = 0, slices: int = 1
    ) -> TakenUp:
        return self._client._admin(
            "consumers.take_up",
            name=name,
            queue=queue,
            generation=generation,
            number=number,
            slice=slice,
            slices=slices,
        )

    def choose(
        self, name: str, queue: str, generation: int, number: int, parts: Sequence[str], *, add: bool = False
    ) -> None:
        self._client._admin(
            "consumers.choose",
            name=name,
            queue=queue,
            generation=generation,
            number=number,
            parts=parts,
            add=add,
        )

    def close(self, name: str, queue: str, generation: int, up_to: int) -> CloseResult:
        return self._client._admin(
            "consumers.close", name=name, queue=queue, generation=generation, up_to=up_to
        )

    def heartbeat(self, name: str, queue: str, generation: int) -> ConsumerInfo:
        return self._client._admin("consumers.heartbeat", name=name, queue=queue, generation=generation)

    def ceiling(self, name: str, queue: str, generation: int) -> int:
        return self._client._admin("consumers.ceiling", name=name, queue=queue, generation=generation)

    def release(self, name: str, queue: str) -> int:
        return self._client._admin("consumers.release", name=name, queue=queue)

    def drop(self, name: str, queue: str) -> None:
        self._client._admin("consumers.drop", name=name, queue=queue)

    def list(self) -> builtins.list[ConsumerInfo]:
        return self._client._admin("consumers.list")

    def show(self, name: str, queue: str) -> ConsumerInfo:
        return self._client._admin("consumers.show", name=name, queue=queue)

    def _read_pages(
        self, name: str, queue: str, generation: int, number: int, *, slice: int, slices: int, unsettled: bool
    ) -> Iterator[Sequence[Delivery]]:
        for answer, batch in _pieces(
            self._core, ReadCall(name, queue, generation, number, slice, slices, unsettled=unsettled)
        ):
            yield decode_deliveries(batch, answer.queues)

    def _record(self, call: RecordCall, batch: pa.RecordBatch) -> None:
        self._core.check()
        self._core.ask("record", encode_call(call), batch, name="consumers.record")


class ClientStaging:
    """`client.staging`: chunks of messages that become visible together."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._core = client._core

    def stage(
        self,
        token: str,
        chunk: str,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        ttl: Duration = "1d",
        skip_invalid: bool = False,
        dead: Dead | Sequence[Dead] | None = None,
    ) -> StageResult:
        self._core.check()
        with self._client._traces.enqueuing(queue, messages) as carried:
            return self._stage_messages(
                StageCall(token, chunk, queue, plain(ttl), skip_invalid, plain(dead)), carried
            )

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
        return self._stage(
            StageCall(token, chunk, queue, plain(ttl), skip_invalid, plain(dead)), fit(batch, MESSAGES)
        )

    def publish(self, token: str, queue: str, chunks: Sequence[str]) -> PublishResult:
        return self._client._admin("staging.publish", token=token, queue=queue, chunks=chunks)

    def discard(self, token: str, queue: str) -> int:
        return self._client._admin("staging.discard", token=token, queue=queue)

    def list(self) -> list[StagedWrite]:
        return self._client._admin("staging.list")

    def _stage_messages(self, call: StageCall, messages: Sequence[NewMessage]) -> StageResult:
        """What is not right is refused before it is sent, or left out and told by its row in what was given."""
        if call.skip_invalid is not True:
            return self._stage(call, encode_messages(check_messages(messages)))
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
        staged = self._stage(call, encode_messages(checked))
        refused = left_out | {sent[refusal.row]: refusal.error for refusal in staged.refused}
        return msgspec.structs.replace(
            staged, refused=[Refusal(row, refused[row]) for row in sorted(refused)]
        )

    def _stage(self, call: StageCall, batch: pa.RecordBatch) -> StageResult:
        self._core.check()
        answer, _ = self._core.ask("stage", encode_call(call), batch, name="staging.stage")
        if answer.staged is None:
            raise ProtocolMismatch("what was staged", "an answer without it")
        return answer.staged


def _pieces(core: Core, call: ReadCall) -> Iterator[Piece]:
    after = b""

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
