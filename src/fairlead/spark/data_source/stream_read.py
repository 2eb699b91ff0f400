"""Streaming read: each micro-batch is one numbered claim of a durable consumer, cut into slices for the
tasks.

Spark logs the offset of a batch before it reads the batch. It asks for the next offset, with the last one as
`start`, only after the batch is in its commit log. So `latestOffset` closes the claim of the last batch, also
if there are no new messages. Spark calls `commit` too late for the last batch, and `stop` also when the
driver died.

An open claim has the same messages in the same order in every read. So no state of this process must survive:
a query that restarts hours later reads the claim of its checkpoint from the broker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fairlead.errors import ClaimClosed, ClaimNotNext, ClaimReleased, FairleadError, InvalidRequest
from fairlead.model.limits import MAX_ANSWER_BYTES, MAX_CLAIM
from fairlead.spark.connection import client_for
from fairlead.spark.heartbeats import start_heartbeats
from fairlead.spark.options import SparkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.client.bulk import BulkConsumers
    from fairlead.model.consumer import ConsumerInfo

log = logging.getLogger("fairlead.spark")

#: Without a wait Spark would ask ninety times a second. A much longer wait would delay other sources of the
#: query.
_IDLE_WAIT = "500ms"

#: The broker no longer has the claim of the checkpoint.
_LOST = (ClaimReleased, ClaimClosed, ClaimNotNext)
_WHAT_TO_DO = (
    "The checkpoint of this query names a claim that the broker no longer has. With the option failOnDataLoss = false the query continues "
    "without the claim; with a new checkpoint it starts with the messages in the queue. Either way, messages that the sink has may come again."
)


@dataclass(frozen=True)
class Offset:
    """`number` is the claim of the batch that ends here. `resets` counts how often the consumer was made anew
    and its numbers restarted, so that no two offsets are equal.

    `initial`: the query has no claim yet, and starts after claim `number`. Spark makes an empty batch up to
    this offset.
    """

    consumer: str
    queue: str
    number: int
    resets: int = 0
    initial: bool = False

    def as_json(self) -> dict[str, Any]:
        more = ({"resets": self.resets} if self.resets else {}) | ({"initial": True} if self.initial else {})
        return {"consumer": self.consumer, "queue": self.queue, "number": self.number} | more

    @classmethod
    def of(cls, json: Mapping[str, Any], options: SparkOptions) -> Offset:
        """Raises `InvalidRequest` for a checkpoint of another consumer, whose numbers mean other claims."""
        for option, given in (("consumer", options.consumer), ("queue", options.queue)):
            if json.get(option) != given:
                expected = f"{json.get(option)!r}, as in this checkpoint; or give the query a new checkpoint"
                raise InvalidRequest(f"option {option}", expected, given)
        return cls(
            options.consumer,
            options.queue,
            int(json["number"]),
            int(json.get("resets", 0)),
            bool(json.get("initial", False)),
        )


@dataclass(frozen=True)
class SlicePartition(InputPartition):
    """The slice that a task reads. `generation` refuses tasks of a query whose consumer was taken over."""

    consumer: str
    generation: int
    number: int
    slice: int
    slices: int


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One reader lives in a process beside the driver as long as the query. Its copies in tasks only `read`.

    Raises `StaleConsumer` when another query took the consumer over; `ClaimReleased`, `ClaimClosed` or
    `ClaimNotNext` when the broker no longer has a claim of the checkpoint, unless `failOnDataLoss` is false;
    and `ServerUnreachable` after `timeout`.
    """

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._forget()

    def _forget(self) -> None:
        self._known: ConsumerInfo | None = None
        self._initial: Offset | None = None
        #: The claim that this process made or found open.
        self._in_hand: int | None = None
        #: The offset up to which claims are closed, and the number of the next claim.
        self._settled: tuple[Offset, int] | None = None
        self._ceiling: int | None = None
        #: How many messages may still be claimed up to the ceiling.
        self._left = 0
        self._stopped: threading.Event | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def initialOffset(self) -> dict[str, Any]:
        """Start a query without a checkpoint after the last closed claim. Spark calls this twice, and again
        until batch 0 is committed.
        """
        if self._initial is None:
            last_closed = self._consumer().last_closed
            self._initial = Offset(self._options.consumer, self._options.queue, last_closed, initial=True)
            # This query has closed or lost no claim yet, whatever an earlier query of the consumer did.
            self._settled = (self._initial, last_closed + 1)
        return self._initial.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read no message that was enqueued later.

        Released messages return to places before the ceiling. Counting messages ends a query that would claim
        and release them for ever.
        """
        self._ceiling = self._consumers.ceiling(
            self._options.consumer, self._options.queue, self._consumer().generation
        )
        there = client_for(self._options).stats(self._options.queue)
        self._left = there.ready + there.leased

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = Offset.of(start, self._options)
        number = self._close(at)
        messages, size = self._limits(limit)
        if self._ceiling is not None and self._left <= 0 and number != self._in_hand:
            return start
        # With a ceiling no new message can arrive, so there is nothing to wait for.
        wait = _IDLE_WAIT if self._ceiling is None else None
        claim = self._consumers.claim(
            self._options.consumer,
            self._options.queue,
            self._consumer().generation,
            number,
            limit=messages,
            max_bytes=size,
            wait=wait,
            up_to=self._ceiling,
        )
        if not claim.count:
            return start
        if number != self._in_hand:
            self._left -= claim.count
        self._begin_batch(number)
        # A consumer that was made anew counts from 1. Its offsets must differ from those in the checkpoint.
        return Offset(at.consumer, at.queue, number, at.resets + (number <= at.number)).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The slices of the batch. One claim is one batch, so `end` alone names it."""
        upto = Offset.of(end, self._options)
        if upto.initial:
            return []
        number = upto.number
        generation = self._consumer().generation
        if number != self._in_hand:
            if not self._is_open(number):
                return []
            self._begin_batch(number)
        slices = self._options.partition_count
        return [
            SlicePartition(self._options.consumer, generation, number, at, slices) for at in range(slices)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: `latestOffset` has closed the claim already."""

    def stop(self) -> None:
        """Keep the open claim: Spark also calls this when the driver died, and then reads the same batch
        again.
        """
        if self._stopped is not None:
            self._stopped.set()

    @property
    def _consumers(self) -> BulkConsumers:
        return client_for(self._options).consumers

    def _consumer(self) -> ConsumerInfo:
        """Register at the first use. Readers that Spark makes for planning never get here, so they cannot
        fence this one.
        """
        if self._known is None:
            self._known = self._consumers.register(
                self._options.consumer, self._options.queue, ttl=self._options.consumer_ttl
            )
            self._stopped = threading.Event()
            generation = self._known.generation
            start_heartbeats(
                self._options.consumer,
                self._options.consumer_ttl,
                lambda: self._consumers.heartbeat(self._options.consumer, self._options.queue, generation),
                self._stopped,
            )
        return self._known

    def _close(self, at: Offset) -> int:
        """Close the claims up to `at`, whose batch Spark has committed, and return the number of the next
        claim.
        """
        if self._settled is not None and self._settled[0] == at:
            return self._settled[1]
        name, queue, generation = self._options.consumer, self._options.queue, self._consumer().generation
        try:
            # Claims before this query are not its own to close, nor its loss.
            if at.initial:
                last_closed = self._consumers.heartbeat(name, queue, generation).last_closed
            else:
                last_closed = self._consumers.close(name, queue, generation, at.number).last_closed
        except _LOST as lost:
            self._report_loss(lost)
            last_closed = self._consumers.heartbeat(name, queue, generation).last_closed
        else:
            if last_closed > at.number:
                now = self._consumers.heartbeat(name, queue, generation)
                # A claim that was released before Spark logged it is no loss.
                if not now.lost == last_closed == at.number + 1:
                    self._report_loss(ClaimClosed(name, at.number + 1, last_closed))
        self._settled = (at, last_closed + 1)
        return last_closed + 1

    def _is_open(self, number: int) -> bool:
        """Whether the claim of a batch that Spark reads again after a restart is open.

        Claiming the number again could make a new claim under it, so the state of the consumer is read
        instead.
        """
        name = self._options.consumer
        now = self._consumers.heartbeat(name, self._options.queue, self._consumer().generation)
        if now.open == number:
            return True
        if now.lost == number:
            self._report_loss(
                ClaimReleased(
                    name,
                    number,
                    "it was released, by an operator or because the consumer sent no heartbeat for its time to live",
                )
            )
        elif number <= now.last_closed:
            self._report_loss(ClaimClosed(name, number, now.last_closed))
        else:
            self._report_loss(ClaimNotNext(name, number, now.last_closed))
        return False

    def _begin_batch(self, number: int) -> None:
        """Clear the choice of an earlier run of this batch: its outcomes must not count beside those of this
        run.
        """
        known = self._consumer()
        if number != self._in_hand and number == known.open:
            self._consumers.choose(known.name, known.queue, known.generation, number, [])
        self._in_hand = number

    def _report_loss(self, lost: FairleadError) -> None:
        if self._options.fail_on_data_loss:
            lost.add_note(_WHAT_TO_DO)
            raise lost
        log.warning("failOnDataLoss is false, so the query continues: %s", lost)

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        messages, size = self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger
        if isinstance(limit, ReadAllAvailable):
            return MAX_CLAIM, MAX_ANSWER_BYTES
        if isinstance(limit, ReadMaxRows):
            return max(1, min(limit.max_rows, MAX_CLAIM)), size
        if isinstance(limit, ReadMaxBytes):
            return messages, max(1, min(limit.max_bytes, MAX_ANSWER_BYTES))
        return messages, size

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from fairlead.spark.data_source.rows import BatchConverter
        from fairlead.spark.data_source.settle_columns import Receipt

        assert isinstance(partition, SlicePartition)
        claim = Receipt(partition.consumer, self._options.queue, partition.generation, partition.number)
        converter = BatchConverter(
            self._schema, self._options.queue, receipt=str(claim), headers=self._options.include_headers
        )
        try:
            for batch in self._consumers.read_batches(
                *claim, slice=partition.slice, slices=partition.slices, payloads=self._options.include_payload
            ):
                yield converter.convert(batch)
        except _LOST as lost:
            self._report_loss(lost)


class RefusedReader(DataSourceStreamReader):
    """Raises the error of wrong options at its first call. An error raised while a reader is made is hidden
    by Spark 4.3 under an error of its own.
    """

    def __init__(self, refused: InvalidRequest) -> None:
        self._fields = refused.fields

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(**self._fields)

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()
