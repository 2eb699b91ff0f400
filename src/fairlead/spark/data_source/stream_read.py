"""Streaming read: each micro-batch is one numbered claim of a durable consumer, cut into slices for the
tasks.

Spark writes down which claim a batch is before it reads it, and asks for the next one, with the last as
`start`, only when the batch is in its commit log. That is the moment when the last claim is closed: in
`latestOffset`, also when nothing new is there. Spark's own `commit` comes too late for the last batch, and
`stop` is no sign that anything is over.

A claim is the same set in the same order for as long as it is open. So nothing of this process has to
survive: a query that starts again, hours later, reads what its checkpoint speaks of from the broker.
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

from fairlead.errors import ClaimClosed, ClaimNotNext, ClaimReleased, FairleadError, InvalidRequest, Rejected
from fairlead.model.durations import to_ms
from fairlead.model.limits import MAX_ANSWER_BYTES, MAX_CLAIM
from fairlead.spark.connection import client_for
from fairlead.spark.options import SparkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.client.bulk import BulkConsumers
    from fairlead.model.consumer import ConsumerInfo

log = logging.getLogger("fairlead.spark")

#: Without it Spark would ask ninety times a second; much longer, and the other sources of a query would wait
#: for this one.
_IDLE_WAIT = "500ms"
_LONGEST_BEAT_S = 30.0

#: The broker does not have what the checkpoint speaks of.
_LOST = (ClaimReleased, ClaimClosed, ClaimNotNext)
_WHAT_TO_DO = (
    "The checkpoint of this query speaks of a claim that the broker no longer has. With the option failOnDataLoss = false the query goes on "
    "without it; with a new checkpoint it starts with what is in the queue. Either way messages that the sink has may come again."
)


@dataclass(frozen=True)
class Offset:
    """`number` is of the last claim in hand of `consumer`, which reads `queue`. `resets` counts how often
    numbers began anew, so that no offset is met twice.

    `initial`: the query has none in hand yet, and `number` is where it begins behind. Spark makes a batch up
    to it where nothing is there.
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
        """Refuses a checkpoint of another consumer: its numbers would be taken for those of this one."""
        for option, given in (("consumer", options.consumer), ("queue", options.queue)):
            if json.get(option) != given:
                expected = f"{json.get(option)!r}, whose place this checkpoint has; or give the query a new checkpoint"
                raise InvalidRequest(f"option {option}", expected, given)
        return cls(
            options.consumer,
            options.queue,
            int(json["number"]),
            int(json.get("resets", 0)),
            bool(json.get("initial", False)),
        )


@dataclass(frozen=True)
class Slice(InputPartition):
    """What a task reads. `generation` keeps the tasks of a query that was taken over from reading on."""

    consumer: str
    generation: int
    number: int
    slice: int
    slices: int


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives in a process beside the driver as long as the query; its copies in the tasks only `read`.

    Raises what the broker says: `StaleConsumer` when another query has taken the consumer over,
    `ClaimReleased` and its like when a claim of the checkpoint is gone, unless `failOnDataLoss` is false.
    `ServerUnreachable` only after `timeout`.
    """

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._forget()

    def _forget(self) -> None:
        self._known: ConsumerInfo | None = None
        self._initial: Offset | None = None
        #: The claim this process has made or found open.
        self._in_hand: int | None = None
        #: The offset up to which everything is closed, and the number that comes next.
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

    # Beside the driver

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins: behind what is closed. Asked twice, and again until
        batch 0 is committed.
        """
        if self._initial is None:
            last_closed = self._consumer().last_closed
            self._initial = Offset(self._options.consumer, self._options.queue, last_closed, initial=True)
            # Nothing of this query is closed or lost yet, whatever an earlier one left behind.
            self._settled = (self._initial, last_closed + 1)
        return self._initial.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is released goes back to its place before the ceiling: counting ends a query that would
        release it again and again.
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
        # Up to the ceiling nothing is going to come that is not there already.
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
        self._take_up(number)
        # A consumer that was made anew counts from 1: its claims must not be taken for those that the
        # checkpoint has seen.
        return Offset(at.consumer, at.queue, number, at.resets + (number <= at.number)).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One claim is one batch: which one it is, `end` says alone."""
        upto = Offset.of(end, self._options)
        if upto.initial:
            return []
        number = upto.number
        generation = self._consumer().generation
        if number != self._in_hand:
            if not self._is_open(number):
                return []
            self._take_up(number)
        slices = self._options.partition_count
        return [Slice(self._options.consumer, generation, number, at, slices) for at in range(slices)]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: by now `latestOffset` has closed it."""

    def stop(self) -> None:
        """Claims stay: Spark calls this when the driver died as well, and will want the same batch again."""
        if self._stopped is not None:
            self._stopped.set()

    @property
    def _consumers(self) -> BulkConsumers:
        return client_for(self._options).consumers

    def _consumer(self) -> ConsumerInfo:
        """Registers when first needed, in the process that stays: planning makes readers too, which must not
        fence this one off.
        """
        if self._known is None:
            self._known = self._consumers.register(
                self._options.consumer, self._options.queue, ttl=self._options.consumer_ttl
            )
            self._stopped = threading.Event()
            beat_s = min(to_ms(self._options.consumer_ttl, "consumerTtl") / 4000, _LONGEST_BEAT_S)
            threading.Thread(
                target=self._beat,
                args=(self._known.generation, beat_s, self._stopped),
                name="fairlead-heartbeat",
                daemon=True,
            ).start()
        return self._known

    def _beat(self, generation: int, every_s: float, stopped: threading.Event) -> None:
        while not stopped.wait(every_s):
            try:
                self._consumers.heartbeat(self._options.consumer, self._options.queue, generation)
            except Rejected as refused:
                # The query's next call hears it too, and ends with it.
                log.warning("no more heartbeats of consumer %s: %s", self._options.consumer, refused)
                return
            except FairleadError as trouble:
                log.warning(
                    "a heartbeat of consumer %s did not get through: %s", self._options.consumer, trouble
                )

    def _close(self, at: Offset) -> int:
        """Closes everything up to `at`, whose batch Spark has committed, and gives the number of the next
        claim.
        """
        if self._settled is not None and self._settled[0] == at:
            return self._settled[1]
        name, queue, generation = self._options.consumer, self._options.queue, self._consumer().generation
        try:
            # What was before this query is not its own to close, nor its loss.
            if at.initial:
                last_closed = self._consumers.heartbeat(name, queue, generation).last_closed
            else:
                last_closed = self._consumers.close(name, queue, generation, at.number).last_closed
        except _LOST as lost:
            self._lose(lost)
            last_closed = self._consumers.heartbeat(name, queue, generation).last_closed
        else:
            if last_closed > at.number:
                now = self._consumers.heartbeat(name, queue, generation)
                # One that was claimed and let go of before Spark knew of it is no loss.
                if not now.lost == last_closed == at.number + 1:
                    self._lose(ClaimClosed(name, at.number + 1, last_closed))
        self._settled = (at, last_closed + 1)
        return last_closed + 1

    def _is_open(self, number: int) -> bool:
        """Of a batch that is read again, after a restart. Not asked by claiming it: that could make another
        claim of the same number.
        """
        name = self._options.consumer
        now = self._consumers.heartbeat(name, self._options.queue, self._consumer().generation)
        if now.open == number:
            return True
        if now.lost == number:
            self._lose(
                ClaimReleased(
                    name,
                    number,
                    "it was released, by an operator or because the consumer was not seen for its time to live",
                )
            )
        elif number <= now.last_closed:
            self._lose(ClaimClosed(name, number, now.last_closed))
        else:
            self._lose(ClaimNotNext(name, number, now.last_closed))
        return False

    def _take_up(self, number: int) -> None:
        """What was chosen in a run that this one repeats must not count beside what this one is going to
        choose.
        """
        known = self._consumer()
        if number != self._in_hand and number == known.open:
            self._consumers.choose(known.name, known.queue, known.generation, number, [])
        self._in_hand = number

    def _lose(self, lost: FairleadError) -> None:
        if self._options.fail_on_data_loss:
            lost.add_note(_WHAT_TO_DO)
            raise lost
        log.warning("failOnDataLoss is false, so the query goes on: %s", lost)

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        messages, size = self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger
        if isinstance(limit, ReadAllAvailable):
            return MAX_CLAIM, MAX_ANSWER_BYTES
        if isinstance(limit, ReadMaxRows):
            return max(1, min(limit.max_rows, MAX_CLAIM)), size
        if isinstance(limit, ReadMaxBytes):
            return messages, max(1, min(limit.max_bytes, MAX_ANSWER_BYTES))
        return messages, size

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from fairlead.spark.data_source.rows import Rows
        from fairlead.spark.data_source.settle_columns import Receipt

        assert isinstance(partition, Slice)
        claim = Receipt(partition.consumer, self._options.queue, partition.generation, partition.number)
        rows = Rows(
            self._schema, self._options.queue, receipt=str(claim), headers=self._options.include_headers
        )
        try:
            for batch in self._consumers.read_batches(
                *claim, slice=partition.slice, slices=partition.slices, payloads=self._options.include_payload
            ):
                yield rows.of(batch)
        except _LOST as lost:
            self._lose(lost)


class RefusedReader(DataSourceStreamReader):
    """Says why it cannot be one as soon as it is asked for anything. Spark 4.3 buries what making a reader
    raises under an error of its own.
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
