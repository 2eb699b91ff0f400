"""The calls of the streaming reader, in the orders in which Spark was seen to use it. The broker is a
stand-in; tests/spark has the same tests with a real one.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from fairlead.errors import ClaimClosed, ClaimNotNext, ClaimReleased, InvalidRequest, StaleConsumer
from fairlead.model.consumer import CloseResult, ConsumerInfo, NumberedClaim
from fairlead.spark.data_source import stream_read
from fairlead.spark.data_source.schema import read_schema
from fairlead.spark.data_source.stream_read import SlicePartition, StreamReader
from fairlead.spark.options import read_options


class Consumers:
    """A stand-in for `client.consumers`, with one consumer of a queue with `waiting` messages."""

    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting
        self.generation = 0
        self.last_closed = 0
        self.lost = 0
        self.open: tuple[int, int] | None = None
        self.calls: list[str] = []
        self.asked: dict[str, Any] = {}

    def register(self, name: str, queue: str, *, ttl: str) -> ConsumerInfo:
        self.generation += 1
        return self._info("register")

    def heartbeat(self, name: str, queue: str, generation: int) -> ConsumerInfo:
        return self._info("heartbeat", generation)

    def ceiling(self, name: str, queue: str, generation: int) -> int:
        self._info("ceiling", generation)
        return 99

    def claim(
        self, name: str, queue: str, generation: int, number: int, *, limit: int, **asked: Any
    ) -> NumberedClaim:
        self._info(f"claim {number}", generation)
        self.asked = asked | {"limit": limit}
        if number != self.last_closed + 1:
            raise ClaimNotNext(name, number, self.last_closed)
        if self.open is None:
            taken = min(limit, self.waiting)
            if not taken:
                return NumberedClaim(number, 0, 0)
            self.waiting -= taken
            self.open = (number, taken)
        return NumberedClaim(number, self.open[1], 0)

    def close(self, name: str, queue: str, generation: int, up_to: int) -> CloseResult:
        self._info(f"close {up_to}", generation)
        if up_to == self.lost:
            raise ClaimReleased(name, up_to, "released")
        if self.open is not None and self.open[0] == up_to:
            self.open, self.last_closed = None, up_to
        elif up_to > self.last_closed:
            raise ClaimNotNext(name, up_to, self.last_closed)
        return CloseResult(self.last_closed, {})

    def stats(self, queue: str) -> SimpleNamespace:
        self._info("stats")
        return SimpleNamespace(ready=self.waiting, leased=self.open[1] if self.open else 0)

    def choose(self, name: str, queue: str, generation: int, number: int, parts: list[str]) -> None:
        self._info(f"choose {parts} in {number}", generation)

    def release(self) -> None:
        assert self.open is not None
        self.lost = self.last_closed = self.open[0]
        self.waiting += self.open[1]
        self.open = None

    def read_batches(self, name: str, queue: str, generation: int, number: int, **_: Any):
        self._info(f"read {number}", generation)
        if self.open is None or self.open[0] != number:
            raise ClaimReleased(name, number, "released")
        return iter(())

    def _info(self, call: str, generation: int | None = None) -> ConsumerInfo:
        self.calls.append(call)
        if generation is not None and generation != self.generation:
            raise StaleConsumer("etl", generation, self.generation)
        return ConsumerInfo(
            name="etl",
            queue="orders",
            generation=self.generation,
            last_closed=self.last_closed,
            open=self.open[0] if self.open else 0,
            lost=self.lost,
            ttl_ms=1,
            seen_at=0,
            expires_at=1,
        )


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch) -> Consumers:
    made = Consumers()
    monkeypatch.setattr(
        stream_read, "client_for", lambda options: SimpleNamespace(consumers=made, stats=made.stats)
    )
    return made


def reader(**options: str) -> StreamReader:
    given = {
        "endpoint": "127.0.0.1:5554",
        "queue": "orders",
        "consumer": "etl",
        "numPartitions": "2",
    } | options
    _readers.append(StreamReader(read_options(given).for_direction("stream read"), read_schema()))
    return _readers[-1]


_readers: list[StreamReader] = []


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """Stop the readers, whose heartbeats would continue in later tests."""
    yield
    while _readers:
        _readers.pop().stop()


def at(number: int, **more: int) -> dict[str, Any]:
    return {"consumer": "etl", "queue": "orders", "number": number} | more


LIMIT = ReadMaxRows(10)


def test_the_first_batches_call_the_broker_in_the_order_that_closes_only_what_spark_has_committed(
    consumers: Consumers,
):
    consumers.waiting = 25
    source = reader()
    assert source.initialOffset() == at(0, initial=True)
    assert source.latestOffset(at(0, initial=True), LIMIT) == at(1)
    assert source.initialOffset() == at(0, initial=True)
    assert source.partitions(at(0, initial=True), at(1)) == [
        SlicePartition("etl", 1, 1, 0, 2),
        SlicePartition("etl", 1, 1, 1, 2),
    ]
    assert source.latestOffset(at(1), LIMIT) == at(2)
    source.commit(at(1))
    source.partitions(at(1), at(2))
    assert consumers.calls == ["register", "claim 1", "close 1", "claim 2"]
    source.stop()


def test_a_first_batch_without_a_message_is_empty_also_when_it_is_run_again_and_the_next_has_what_came(
    consumers: Consumers,
):
    consumers.last_closed = 5
    source = reader()
    start = source.initialOffset()
    assert source.latestOffset(start, LIMIT) == start == at(5, initial=True)
    assert source.partitions(start, start) == []
    source.stop()
    consumers.waiting = 3
    again = reader()
    assert again.partitions(again.initialOffset(), start) == []
    assert again.latestOffset(start, LIMIT) == at(6)
    assert len(again.partitions(start, at(6))) == 2
    again.stop()


def test_a_query_that_began_behind_a_released_claim_and_found_nothing_goes_on_when_it_is_started_again(
    consumers: Consumers,
):
    consumers.last_closed = consumers.lost = 5
    start = at(5, initial=True)
    consumers.waiting = 3
    source = reader()
    assert source.latestOffset(start, LIMIT) == at(6)
    source.stop()


def test_the_last_batch_is_closed_when_spark_asks_again_and_nothing_is_there(consumers: Consumers):
    consumers.waiting = 5
    source = reader()
    source.latestOffset(source.initialOffset(), LIMIT)
    assert source.latestOffset(at(1), LIMIT) == at(1)
    assert consumers.last_closed == 1
    assert source.latestOffset(at(1), LIMIT) == at(1)
    assert consumers.calls.count("close 1") == 1, "idle polls close nothing again"
    source.stop()


def test_a_claim_waits_for_messages_unless_only_what_is_there_now_is_wanted(consumers: Consumers):
    source = reader()
    source.latestOffset(source.initialOffset(), LIMIT)
    assert consumers.asked["wait"]
    assert consumers.asked["up_to"] is None
    consumers.waiting = 1
    source.prepareForTriggerAvailableNow()
    source.latestOffset(source.initialOffset(), LIMIT)
    assert consumers.asked["wait"] is None
    assert consumers.asked["up_to"] == 99
    source.stop()


def test_what_is_there_now_is_claimed_once_even_if_every_batch_gives_all_of_it_back(consumers: Consumers):
    consumers.waiting = 25
    source = reader()
    source.prepareForTriggerAvailableNow()
    offsets = [source.initialOffset()]
    while (following := source.latestOffset(offsets[-1], LIMIT)) != offsets[-1]:
        assert source.latestOffset(offsets[-1], LIMIT) == following
        offsets.append(following)
        consumers.waiting = 25
    assert offsets == [at(0, initial=True), at(1), at(2), at(3)]
    assert consumers.last_closed == 3
    source.stop()


def test_stopping_lets_go_of_nothing(consumers: Consumers):
    consumers.waiting = 5
    source = reader()
    source.latestOffset(source.initialOffset(), LIMIT)
    before = list(consumers.calls)
    source.stop()
    assert consumers.calls == before
    assert consumers.open == (1, 5)


def test_a_restart_within_a_batch_reads_the_claim_of_its_log_and_makes_none(consumers: Consumers):
    consumers.waiting = 25
    first = reader()
    first.latestOffset(first.initialOffset(), LIMIT)
    first.stop()
    again = reader(numPartitions="3")
    assert again.partitions(at(0), at(1)) == [SlicePartition("etl", 2, 1, n, 3) for n in range(3)]
    assert consumers.calls[-3:] == ["register", "heartbeat", "choose [] in 1"]
    assert again.latestOffset(at(1), LIMIT) == at(2)
    again.stop()


def test_what_was_settled_in_a_run_counts_no_more_once_it_is_repeated_and_not_before(consumers: Consumers):
    forgets = "choose [] in 1"
    consumers.waiting = 25
    first = reader()
    first.latestOffset(first.initialOffset(), LIMIT)
    first.partitions(at(0), at(1)), first.partitions(at(0), at(1))
    first.stop()
    assert forgets not in consumers.calls
    # Batch 0 is in Spark's offset log: Spark runs it again, and may plan it more than once.
    again = reader()
    again.partitions(at(0), at(1)), again.partitions(at(0), at(1))
    again.stop()
    assert consumers.calls.count(forgets) == 1
    # A new checkpoint gets the open claim as its first batch.
    fresh = reader()
    fresh.latestOffset(fresh.initialOffset(), LIMIT), fresh.latestOffset(fresh.initialOffset(), LIMIT)
    fresh.stop()
    assert consumers.calls.count(forgets) == 2
    # Batch 0 is in the commit log as well: its outcomes count, and the claim is closed.
    committed = reader()
    assert committed.latestOffset(at(1), LIMIT) == at(2)
    committed.stop()
    assert consumers.calls.count(forgets) == 2
    assert "choose [] in 2" not in consumers.calls


def test_a_claim_that_spark_had_not_written_down_is_given_again(consumers: Consumers):
    consumers.waiting = 25
    first = reader()
    first.latestOffset(first.initialOffset(), LIMIT)
    again = reader()
    assert again.latestOffset(again.initialOffset(), LIMIT) == at(1)
    assert consumers.open == (1, 10)
    with pytest.raises(StaleConsumer):
        first.latestOffset(at(0), LIMIT)
    first.stop(), again.stop()


def test_a_query_without_its_checkpoint_goes_on_behind_what_is_closed(consumers: Consumers):
    consumers.waiting, consumers.last_closed = 5, 7
    source = reader()
    assert source.initialOffset() == at(7, initial=True)
    assert source.latestOffset(at(7), LIMIT) == at(8)
    source.stop()


def test_a_new_checkpoint_is_not_blamed_for_a_claim_that_an_older_one_lost(consumers: Consumers):
    consumers.waiting, consumers.last_closed, consumers.lost = 5, 7, 7
    source = reader()
    assert source.latestOffset(source.initialOffset(), LIMIT) == at(8)
    source.stop()


def test_copies_for_tasks_and_for_planning_take_nothing_over(consumers: Consumers):
    consumers.waiting = 5
    source = reader()
    source.latestOffset(source.initialOffset(), LIMIT)
    (part, _) = source.partitions(at(0), at(1))
    copy = pickle.loads(pickle.dumps(source))
    planned = reader()
    assert [*copy.read(part)] == [*planned.read(part)] == []
    assert consumers.calls.count("register") == 1
    source.stop()


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (ReadMaxRows(3), (3, 1024)),
        (ReadMaxBytes(77), (50, 77)),
        (ReadAllAvailable(), (100_000, 256 << 20)),
        (ReadMaxRows(10**9), (100_000, 1024)),
    ],
)
def test_spark_s_limits_become_the_claim_s(consumers: Consumers, limit, expected: tuple[int, int]):
    source = reader(maxMessagesPerTrigger="50", maxBytesPerTrigger="1k")
    assert source.getDefaultReadLimit() == ReadMaxRows(50)
    source.latestOffset(source.initialOffset(), limit)
    assert (consumers.asked["limit"], consumers.asked["max_bytes"]) == expected
    source.stop()


def test_a_checkpoint_of_another_consumer_is_refused(consumers: Consumers):
    with pytest.raises(InvalidRequest, match="other"):
        reader().latestOffset(at(3) | {"consumer": "other"}, LIMIT)


def test_a_checkpoint_of_a_consumer_of_another_queue_is_refused(consumers: Consumers):
    for ask in (
        lambda offset: reader().latestOffset(offset, LIMIT),
        lambda offset: reader().partitions(at(2), offset),
    ):
        with pytest.raises(InvalidRequest, match="expected option queue to be 'elsewhere'"):
            ask(at(3) | {"queue": "elsewhere"})
    assert consumers.calls == []


# Claims that are gone


def released_within_a_batch(consumers: Consumers) -> None:
    consumers.waiting = 5
    first = reader()
    first.latestOffset(first.initialOffset(), LIMIT)
    first.stop()
    consumers.release()


def test_a_released_claim_ends_the_query_that_would_read_it_again(consumers: Consumers):
    released_within_a_batch(consumers)
    with pytest.raises(ClaimReleased):
        reader().partitions(at(0), at(1))


def test_without_fail_on_data_loss_a_released_claim_reads_as_empty_with_a_warning(
    consumers: Consumers, caplog: pytest.LogCaptureFixture
):
    released_within_a_batch(consumers)
    source = reader(failOnDataLoss="false")
    assert source.partitions(at(0), at(1)) == []
    assert "claim 1" in caplog.text
    assert source.latestOffset(at(1), LIMIT) == at(2)
    source.stop()


def test_a_first_batch_whose_claim_is_gone_is_noticed_although_the_beginning_has_moved(consumers: Consumers):
    released_within_a_batch(consumers)
    source = reader()
    assert source.initialOffset() == at(1, initial=True)
    with pytest.raises(ClaimReleased):
        source.partitions(at(1), at(1))
    source.stop()


def test_a_claim_released_before_spark_knew_of_it_is_no_loss(consumers: Consumers):
    consumers.last_closed = 3
    released_within_a_batch(consumers)
    source = reader()
    assert source.latestOffset(at(3), LIMIT) == at(5)
    source.stop()


def test_a_committed_batch_whose_claim_was_released_will_come_twice_and_that_is_said(consumers: Consumers):
    released_within_a_batch(consumers)
    source = reader()
    with pytest.raises(ClaimReleased):
        source.latestOffset(at(1), LIMIT)
    source.stop()
    softened = reader(failOnDataLoss="false")
    assert softened.latestOffset(at(1), LIMIT) == at(2)
    softened.stop()


def test_a_checkpoint_older_than_the_broker_s_memory_is_refused(consumers: Consumers):
    consumers.waiting, consumers.last_closed = 5, 9
    source = reader()
    with pytest.raises(ClaimClosed):
        source.partitions(at(5), at(6))
    with pytest.raises(ClaimClosed):
        source.latestOffset(at(6), LIMIT)
    source.stop()
    softened = reader(failOnDataLoss="false")
    assert softened.partitions(at(5), at(6)) == []
    assert softened.latestOffset(at(6), LIMIT) == at(10)
    softened.stop()


def test_a_consumer_made_anew_never_gives_an_offset_that_the_checkpoint_has_seen(consumers: Consumers):
    consumers.waiting = 25
    source = reader()
    with pytest.raises(ClaimNotNext):
        source.latestOffset(at(1), LIMIT)
    source.stop()
    softened = reader(failOnDataLoss="false")
    assert softened.latestOffset(at(1), LIMIT) == at(1, resets=1)
    assert len(softened.partitions(at(1), at(1, resets=1))) == 2
    assert softened.latestOffset(at(1, resets=1), LIMIT) == at(2, resets=1)
    softened.stop()


def test_a_task_of_a_released_claim_fails_or_reads_nothing(consumers: Consumers):
    consumers.waiting = 5
    source = reader()
    source.latestOffset(source.initialOffset(), LIMIT)
    (part, _) = source.partitions(at(0), at(1))
    consumers.release()
    with pytest.raises(ClaimReleased):
        [*source.read(part)]
    assert [*reader(failOnDataLoss="false").read(part)] == []
    source.stop()


def test_tasks_of_a_query_that_was_taken_over_read_no_more(consumers: Consumers):
    consumers.waiting = 5
    source = reader()
    source.latestOffset(source.initialOffset(), LIMIT)
    (part, _) = source.partitions(at(0), at(1))
    other = reader()
    other.initialOffset()
    with pytest.raises(StaleConsumer):
        [*reader(failOnDataLoss="false").read(part)]
    source.stop(), other.stop()
