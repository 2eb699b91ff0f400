"""What a stream does with what it claims ahead, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fairlead.errors import LostLease, MessageNotFound, QueueNotFound, ServerStopping
from fairlead.model.settle import Settlement, SettleResult
from fairlead.server.fila.consume import AHEAD_BYTES, AHEAD_MESSAGES
from tests.doors.fila.in_process import Caller, workbench
from tests.doors.fila.servers import eventually


def test_a_broken_stream_gives_back_what_it_never_wrote_in_order_and_without_an_attempt() -> None:
    with workbench() as bench:
        ids = bench.enqueue(b"0", b"1", b"2", b"3")
        stream = bench.consume(Caller())
        assert next(stream).message.id == ids[0]
        assert bench.broker.stats("q").leased == 4
        stream.close()
        assert [info.id for info in bench.broker.peek("q")] == ids[1:]
        assert bench.attempts() == [0, 0, 0]
        assert bench.broker.stats("q").leased == 1


def test_what_was_written_is_started_so_that_its_expiry_counts() -> None:
    with workbench() as bench:
        written, ahead = bench.enqueue(b"0", b"1")
        stream = bench.consume(Caller())
        next(stream)
        bench.told()
        bench.clock.advance(seconds=31)
        assert bench.broker.find(written).attempts == 1
        assert bench.broker.find(ahead).attempts == 0


def test_a_message_that_comes_while_the_stream_waits_is_written_and_counts() -> None:
    with workbench() as bench:
        caller = Caller()
        stream = bench.consume(caller)
        bench.broker.interrupt_waits()  # a wait on this clock would have no end
        [message_id] = bench.enqueue(b"x" * AHEAD_BYTES)
        assert next(stream).message.id == message_id
        assert caller.told_open
        [later] = bench.enqueue(b"later")
        assert next(stream).message.id == later  # the one before was so large that nothing is claimed ahead
        bench.clock.advance(seconds=31)
        assert bench.broker.find(later).attempts == 1


def test_a_message_whose_lease_ran_out_before_it_was_written_is_not_written_under_that_lease() -> None:
    with workbench() as bench:
        first, second = bench.enqueue(b"0", b"1")
        caller = Caller()
        stream = bench.consume(caller)
        assert next(stream).message.id == first
        bench.ack(first, caller)
        bench.clock.advance(seconds=31)
        [other] = bench.broker.claim("q")
        assert other.id == second
        bench.broker.interrupt_waits()
        bench.stopping = True
        with pytest.raises(ServerStopping):
            next(stream)
        bench.broker.ack("q", second)


def test_a_lost_message_is_claimed_and_written_again() -> None:
    with workbench() as bench:
        first, second = bench.enqueue(b"0", b"1")
        caller = Caller()
        stream = bench.consume(caller)
        assert next(stream).message.id == first
        bench.ack(first, caller)
        bench.clock.advance(seconds=31)
        again = next(stream).message
        assert (again.id, again.metadata.attempt_count) == (second, 0)
        bench.ack(second, caller)


def test_a_message_that_waited_long_to_be_written_has_a_whole_lease_from_then_on() -> None:
    with workbench() as bench:
        _, second = bench.enqueue(b"0", b"1")
        stream = bench.consume(Caller())
        next(stream)
        bench.clock.advance(seconds=20)
        assert next(stream).message.id == second
        bench.clock.advance(seconds=20)
        assert bench.broker.find(second).where == "leased"
        bench.clock.advance(seconds=11)
        assert bench.broker.find(second).attempts == 1


def test_a_stream_claims_no_further_ahead_than_it_may() -> None:
    with workbench() as bench:
        bench.enqueue(*[b""] * (AHEAD_MESSAGES * 2))
        stream = bench.consume(Caller())
        next(stream)
        assert bench.broker.stats("q").leased == AHEAD_MESSAGES


def test_large_messages_are_claimed_one_by_one() -> None:
    with workbench() as bench:
        bench.enqueue(*[b"x" * AHEAD_BYTES] * (AHEAD_MESSAGES + 3))
        stream = bench.consume(Caller())
        for _ in range(AHEAD_MESSAGES + 1):
            next(stream)
        assert bench.broker.stats("q").leased == AHEAD_MESSAGES + 1


def test_a_stopping_server_ends_the_stream_and_keeps_nothing_back() -> None:
    with workbench() as bench:
        bench.enqueue(b"0", b"1")
        stream = bench.consume(Caller())
        next(stream)
        bench.stopping = True
        with pytest.raises(ServerStopping):
            next(stream)
        assert bench.broker.stats("q").ready == 1


def test_a_stream_whose_queue_is_deleted_ends() -> None:
    with workbench() as bench:
        bench.enqueue(b"0")
        stream = bench.consume(Caller())
        next(stream)
        bench.broker.delete_queue("q")
        with pytest.raises(QueueNotFound):
            next(stream)


def test_a_stream_of_a_caller_who_left_claims_nothing_more() -> None:
    with workbench() as bench:
        bench.enqueue(b"0")
        caller = Caller()
        stream = bench.consume(caller)
        next(stream)
        bench.enqueue(b"1")
        caller.active = False
        assert list(stream) == []
        assert bench.broker.stats("q").ready == 1


def test_a_former_holder_is_fenced_off_and_the_holder_settles() -> None:
    with workbench() as bench:
        former, current = Caller("ipv4:127.0.0.1:1"), Caller("ipv4:127.0.0.1:2")
        [message_id] = bench.enqueue(b"0")
        next(bench.consume(former))
        bench.told()
        bench.clock.advance(seconds=31)
        assert next(bench.consume(current)).message.metadata.attempt_count == 1
        for settle in (bench.ack, bench.nack, bench.ack):
            with pytest.raises(LostLease):
                settle(message_id, former)
        bench.ack(message_id, current)
        with pytest.raises(MessageNotFound):
            bench.ack(message_id, current)


def test_a_connection_that_nacked_is_fenced_off_from_the_next_delivery_too() -> None:
    with workbench() as bench:
        former, current = Caller("ipv4:127.0.0.1:1"), Caller("ipv4:127.0.0.1:2")
        [message_id] = bench.enqueue(b"0")
        next(bench.consume(former))
        bench.nack(message_id, former)
        next(bench.consume(current))
        with pytest.raises(LostLease):
            bench.nack(message_id, former)
        bench.ack(message_id, current)


def test_a_connection_settles_what_it_was_never_sent_by_id_alone() -> None:
    with workbench() as bench:
        [message_id] = bench.enqueue(b"0")
        next(bench.consume(Caller("ipv4:127.0.0.1:1")))
        bench.ack(message_id, Caller("ipv4:127.0.0.1:3"))
        assert bench.broker.stats("q").leased == 0


def test_deliveries_are_started_also_after_a_start_that_failed_in_an_unforeseen_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with workbench() as bench:
        settle, failures = bench.broker.settle, [RuntimeError("a defect")]

        def fail_once(items: Sequence[Settlement]) -> list[SettleResult]:
            if failures:
                raise failures.pop()
            return settle(items)

        monkeypatch.setattr(bench.broker, "settle", fail_once)
        first, second = bench.enqueue(b"0", b"1")
        stream = bench.consume(Caller())
        next(stream)
        eventually(lambda: not failures)
        next(stream)
        bench.told()
        bench.clock.advance(seconds=31)
        assert (bench.broker.find(first).attempts, bench.broker.find(second).attempts) == (0, 1)
