from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from fairlead.client.flight.channel import Channel, Pool, Watchdog
from fairlead.client.flight.transport import FlightTransport, describe
from fairlead.client.outage import ConnectionBroken
from fairlead.clock import SystemClock
from fairlead.errors import InvalidRequest
from fairlead.testing import ManualClock
from tests.client.scene import PATIENCE_S, until

PATIENCE_MS = int(PATIENCE_S * 1000)


class FakeStream:
    """Answers with what it was told, in capitals, unless it is silent: then only a cancel ends a read."""

    def __init__(self, *, silent: bool = False, dead: bool = False) -> None:
        self.silent = silent
        self.dead = dead
        self.reading = threading.Event()
        self.cancelled = threading.Event()
        self.closed = False
        self._last = b""

    def write(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        if self.dead:
            raise pa.ArrowException("the stream is dead")
        self._last = metadata

    def read(self) -> tuple[bytes, None]:
        self.reading.set()
        if self.silent:
            assert self.cancelled.wait(PATIENCE_S)
            raise pa.ArrowCancelled("cancelled")
        if self._last == b"end":
            raise StopIteration
        if self._last == b"interrupt":
            raise KeyboardInterrupt
        return self._last.upper(), None

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def watchdog(clock: ManualClock) -> Iterator[Watchdog]:
    watchdog = Watchdog(clock)
    yield watchdog
    watchdog.close()


def in_thread(call: Callable[[], object]) -> Callable[[], BaseException | None]:
    """The error of a call in a thread of its own, once it has ended."""
    caught: list[BaseException | None] = []
    done = threading.Event()

    def run() -> None:
        try:
            call()
            caught.append(None)
        except BaseException as error:
            caught.append(error)
        done.set()

    threading.Thread(target=run, daemon=True).start()

    def outcome() -> BaseException | None:
        assert done.wait(PATIENCE_S)
        return caught[0]

    return outcome


def test_a_call_without_an_answer_in_time_breaks_its_channel(clock: ManualClock, watchdog: Watchdog) -> None:
    stream = FakeStream(silent=True)
    channel = Channel(stream, watchdog)
    outcome = in_thread(lambda: channel.call(b"x", None, within_ms=1000))
    assert stream.reading.wait(PATIENCE_S)
    clock.advance(ms=999)
    assert not stream.cancelled.is_set()
    until(lambda: (clock.advance(ms=1), stream.cancelled.is_set())[1])
    error = outcome()
    assert isinstance(error, ConnectionBroken)
    assert error.sent
    assert str(error) == "no answer in time"
    assert channel.broken
    assert stream.closed


def test_only_the_channel_whose_time_is_up_is_cancelled(clock: ManualClock, watchdog: Watchdog) -> None:
    late, patient = FakeStream(silent=True), FakeStream(silent=True)
    for stream, within_ms in ((patient, 1_000_000), (late, 1000)):
        in_thread(
            lambda stream=stream, within_ms=within_ms: Channel(stream, watchdog).call(
                b"x", None, within_ms=within_ms
            )
        )  # type: ignore[misc]
        assert stream.reading.wait(PATIENCE_S)
    until(lambda: (clock.advance(ms=100), late.cancelled.is_set())[1])
    assert not patient.cancelled.is_set()
    watchdog.cancel_all()


def test_a_short_deadline_wakes_a_watchdog_that_sleeps_for_a_long_one() -> None:
    """On the system's clock: a manual one wakes everybody whenever it moves."""
    watchdog = Watchdog(SystemClock())
    late, patient = FakeStream(silent=True), FakeStream(silent=True)
    in_thread(lambda: Channel(patient, watchdog).call(b"x", None, within_ms=3_600_000))
    until(lambda: watchdog._wakes_ms < 1 << 62, "the watchdog being asleep")
    in_thread(lambda: Channel(late, watchdog).call(b"x", None, within_ms=20))
    assert late.cancelled.wait(PATIENCE_S)
    assert not patient.cancelled.is_set()
    watchdog.cancel_all()
    watchdog.close()


def test_an_answered_channel_is_left_alone_for_ever(clock: ManualClock, watchdog: Watchdog) -> None:
    idle, late = FakeStream(), FakeStream(silent=True)
    assert Channel(idle, watchdog).call(b"x", None, within_ms=1000) == (b"X", None)
    in_thread(lambda: Channel(late, watchdog).call(b"x", None, within_ms=2000))
    assert late.reading.wait(PATIENCE_S)
    until(lambda: (clock.advance(ms=1000), late.cancelled.is_set())[1])
    assert not idle.cancelled.is_set()


@pytest.mark.parametrize("how", [b"end", b"interrupt"])
def test_a_channel_that_was_left_in_the_middle_of_an_answer_is_not_used_again(
    watchdog: Watchdog, how: bytes
) -> None:
    pool = Pool(lambda _: FakeStream(), watchdog, most_idle=4)
    channel = pool.take(PATIENCE_MS)
    with pytest.raises((ConnectionBroken, KeyboardInterrupt)):
        channel.call(how, None, within_ms=1000)
    pool.give_back(channel)
    assert pool.take(PATIENCE_MS) is not channel


def test_a_pool_reuses_a_channel_and_keeps_only_so_many(watchdog: Watchdog) -> None:
    pool = Pool(lambda _: FakeStream(), watchdog, most_idle=2)
    taken = [pool.take(PATIENCE_MS) for _ in range(3)]
    assert len({*taken}) == 3
    for channel in taken:
        pool.give_back(channel)
    assert [channel.broken for channel in taken] == [False, False, True]
    assert pool.take(PATIENCE_MS) in taken[:2]


def test_a_channel_that_was_cancelled_while_it_was_idle_is_closed_when_it_is_found(
    watchdog: Watchdog,
) -> None:
    streams: list[FakeStream] = []

    def open_stream(_: int) -> FakeStream:
        streams.append(FakeStream())
        return streams[-1]

    pool = Pool(open_stream, watchdog, most_idle=2)
    channel = pool.take(PATIENCE_MS)
    pool.give_back(channel)
    channel.cancel()
    assert pool.take(PATIENCE_MS) is not channel
    assert [stream.closed for stream in streams] == [True, False]


def test_a_channel_that_sent_a_lot_is_not_kept_because_the_server_would_hold_on_to_it(
    watchdog: Watchdog,
) -> None:
    pool = Pool(lambda _: FakeStream(), watchdog, most_idle=2)
    light, heavy = pool.take(PATIENCE_MS), pool.take(PATIENCE_MS)
    light.call(b"x", None, within_ms=1000)
    heavy.call(bytes(5 << 20), None, within_ms=1000)
    pool.give_back(light)
    pool.give_back(heavy)
    assert (light.broken, heavy.broken) == (False, True)


def test_what_a_dead_stream_did_not_take_was_not_sent(watchdog: Watchdog) -> None:
    with pytest.raises(ConnectionBroken) as broken:
        Channel(FakeStream(dead=True), watchdog).call(b"x", None, within_ms=1000)
    assert not broken.value.sent


def test_what_was_being_written_when_its_time_was_up_may_have_been_sent(watchdog: Watchdog) -> None:
    channel = Channel(FakeStream(dead=True), watchdog)
    channel.cancel()
    with pytest.raises(ConnectionBroken) as broken:
        channel.call(b"x", None, within_ms=1000)
    assert broken.value.sent


def test_a_channel_that_cannot_be_opened_has_sent_nothing(watchdog: Watchdog) -> None:
    def refuse(within_ms: int) -> FakeStream:
        raise pa.ArrowException(
            "Flight returned unavailable error, with message: refused. gRPC client debug context: at length"
        )

    with pytest.raises(ConnectionBroken, match=r"^refused$") as broken:
        Pool(refuse, watchdog, most_idle=2).take(PATIENCE_MS)
    assert not broken.value.sent


def test_a_channel_opened_after_the_end_is_cut_off_at_once(watchdog: Watchdog) -> None:
    watchdog.cancel_all()
    stream = FakeStream(silent=True)
    with pytest.raises(ConnectionBroken):
        Channel(stream, watchdog).call(b"x", None, within_ms=1000)


def test_the_end_waits_for_threads_to_leave_their_channels(watchdog: Watchdog) -> None:
    stream = FakeStream(silent=True)
    stream.close, leave = lambda: (leaving.wait(PATIENCE_S), leave())[1], stream.close  # type: ignore[method-assign, func-returns-value]
    leaving = threading.Event()
    in_thread(lambda: Channel(stream, watchdog).call(b"x", None, within_ms=1000))
    assert stream.reading.wait(PATIENCE_S)
    watchdog.cancel_all()
    watchdog.wait_until_unused(0)
    assert len(watchdog._channels) == 1
    leaving.set()
    watchdog.wait_until_unused(PATIENCE_S)
    assert watchdog._channels == set()


def test_closing_the_watchdog_ends_its_thread(watchdog: Watchdog) -> None:
    Channel(FakeStream(), watchdog)
    thread = watchdog._thread
    watchdog.close()
    assert thread is not None
    assert not thread.is_alive()


@pytest.mark.parametrize("address", ["localhost", "host:0", None])
def test_a_client_of_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        FlightTransport(address)


def test_an_end_without_a_word_is_described() -> None:
    assert describe(StopIteration()) == "the server ended the stream"
