from __future__ import annotations

import threading

import pytest

from fairlead.config import LimitSettings
from fairlead.errors import (
    InvalidRequest,
    LimitReached,
    Overloaded,
    QueueFull,
    QueueNotFound,
    ServerStopping,
    StoreFull,
    TooManyLanes,
)
from fairlead.server.limits import Limit, Limits


def test_a_call_beyond_the_limit_is_refused_until_one_has_ended() -> None:
    limits = Limits(LimitSettings(max_calls=2))
    with limits.call():
        with limits.call():
            with pytest.raises(Overloaded) as refused, limits.call():
                pass
            assert (refused.value.what, refused.value.limit) == ("calls at a time", 2)
            assert refused.value.retry_after_ms > 0
            assert (limits.overloaded, limits.refusals[Limit.CALLS]) == (1, 1)
        with limits.call():
            pass
    assert limits.in_flight == 0


def test_a_call_that_waits_takes_no_place_of_one_that_works() -> None:
    limits = Limits(LimitSettings(max_calls=1))
    with limits.waiting_call(), limits.waiting_call(), limits.call():
        assert limits.in_flight == 3


def test_bytes_in_flight_are_bounded_but_one_large_request_passes_alone() -> None:
    limits = Limits(LimitSettings(max_inflight_bytes=100))
    with limits.call(1000), pytest.raises(Overloaded, match="100 bytes in flight"), limits.call(1):
        pass
    with limits.call(60), limits.call(40):
        assert limits.bytes_in_flight == 100
        with pytest.raises(Overloaded), limits.call(1):
            pass
    assert limits.bytes_in_flight == 0


def test_a_call_that_raises_is_over() -> None:
    limits = Limits()
    with pytest.raises(ZeroDivisionError), limits.call(10):
        raise ZeroDivisionError
    assert (limits.in_flight, limits.bytes_in_flight) == (0, 0)


def test_channels_are_bounded_and_are_not_in_flight() -> None:
    limits = Limits(LimitSettings(max_channels=1))
    with limits.channel():
        assert (limits.channels, limits.in_flight) == (1, 0)
        with pytest.raises(Overloaded, match="1 open channels"), limits.channel():
            pass
    assert limits.channels == 0


def test_after_close_nothing_new_begins() -> None:
    limits = Limits()
    limits.close()
    with pytest.raises(ServerStopping), limits.call():
        pass
    with pytest.raises(ServerStopping), limits.waiting_call():
        pass
    with pytest.raises(ServerStopping), limits.channel():
        pass


def test_waiting_until_idle_ends_with_the_last_call() -> None:
    limits = Limits()
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with limits.waiting_call():
            entered.set()
            leave.wait()

    worker = threading.Thread(target=work)
    worker.start()
    entered.wait()
    limits.close()
    assert not limits.wait_until_idle(grace_ms=0)
    assert not limits.wait_until_idle(grace_ms=10**9, hurry=lambda: True)
    leave.set()
    assert limits.wait_until_idle(grace_ms=10**9)
    worker.join()


def test_a_claim_is_one_call_in_flight_until_its_answer_is_written() -> None:
    limits = Limits(LimitSettings(max_calls=1))
    with limits.handing_out():
        with limits.waiting_call(), limits.call():
            assert limits.in_flight == 2
        assert limits.in_flight == 1
        limits.close()
        assert not limits.wait_until_idle(grace_ms=0)
        with pytest.raises(ServerStopping), limits.waiting_call():
            pass
    assert limits.wait_until_idle(grace_ms=0)


def test_a_claim_of_another_thread_is_another_call() -> None:
    limits = Limits()
    seen: list[int] = []

    def wait() -> None:
        with limits.waiting_call():
            seen.append(limits.in_flight)

    with limits.handing_out():
        other = threading.Thread(target=wait)
        other.start()
        other.join()
    with limits.waiting_call():
        seen.append(limits.in_flight)
    assert seen == [2, 1]


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (LimitReached("queues", 1), Limit.QUEUES),
        (LimitReached("configuration keys", 1), Limit.CONFIG),
        (LimitReached("characters of configuration values", 1), Limit.CONFIG),
        (LimitReached("bytes in one request", 1), Limit.REQUEST_BYTES),
        (LimitReached("staged bytes", 1), Limit.STAGED),
        (LimitReached("staged chunks", 1), Limit.STAGED),
        (LimitReached("chunks in one staged write", 1), Limit.STAGED),
        (LimitReached("durable consumers", 1), Limit.DURABLE_CONSUMERS),
        (LimitReached("things nobody has named", 1), Limit.OTHER),
        (TooManyLanes(1), Limit.LANES),
        (QueueFull("q", "max_messages", 1), Limit.QUEUE_FULL),
        (StoreFull("/", 1, 2), Limit.STORE_FULL),
    ],
)
def test_what_a_door_refuses_is_counted_by_its_limit(error: Exception, limit: Limit) -> None:
    limits = Limits()
    limits.count_error(error)
    assert limits.refusals == {limit: 1}


def test_requests_that_are_wrong_are_counted_by_field_and_no_field_is_made_up_by_a_caller() -> None:
    limits = Limits()
    for field in ("payload", "messages[3].payload", "column \x1b[2J", "q" * 500):
        limits.count_error(InvalidRequest(field, "right", 0))
    limits.count_error(QueueNotFound("q"))
    assert limits.invalid == {"payload": 2, "other": 2}
    assert limits.refusals == {}


def test_one_connection_has_only_so_many_channels_and_streams() -> None:
    limits = Limits(LimitSettings(max_channels_per_connection=1, max_streams_per_connection=1))
    with limits.channel("a"), limits.stream("a"):
        with limits.channel("b"), limits.stream("b"):
            pass
        with pytest.raises(Overloaded, match="1 open channels of one connection"), limits.channel("a"):
            pass
        with pytest.raises(Overloaded, match="1 open streams of one connection"), limits.stream("a"):
            pass
    with limits.channel("a"), limits.stream("a"):
        pass


def test_a_channel_that_is_being_opened_counts() -> None:
    limits = Limits(LimitSettings(max_channels=1))
    limits.open_channel()
    with pytest.raises(Overloaded, match="1 open channels"):
        limits.open_channel()
    limits.close_channel()
    limits.open_channel()
    limits.close()
    with pytest.raises(ServerStopping):
        limits.open_channel()


def test_answers_that_nobody_reads_have_a_bound_and_one_passes_alone() -> None:
    limits = Limits(LimitSettings(max_inflight_bytes=60))
    with limits.unread() as first:
        first(1000)
        with limits.unread() as second, pytest.raises(Overloaded, match="nobody has read"):
            second(1)
        first(10)
        with limits.unread() as second:
            second(10)
            with pytest.raises(Overloaded):
                first(11)
            second(1)
            first(15)
    with limits.unread() as first, limits.unread() as second:
        first(10)
        second(10)
    assert limits.refusals[Limit.UNREAD_BYTES] == 2
