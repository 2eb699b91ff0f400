"""The Flight door by itself: what it answers to right and wrong requests, and what a broken connection leaves
behind.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from fairlead import Complete
from fairlead.config import LimitSettings
from fairlead.model.checks import check_messages
from fairlead.model.message import NewMessage
from fairlead.server.flight import FlightDoor, _Channel, _ClientGone
from fairlead.server.limits import Limits
from fairlead.server.logs import Lines
from fairlead.testing import ManualClock, open_in_memory
from fairlead.testing.verbs import replaced_work
from fairlead.verbs.claim import Claim
from fairlead.wire.calls import Open, encode
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.messages import encode_messages
from fairlead.wire.schemas import MESSAGES
from fairlead.wire.writes import decode_result
from tests.doors.flight.raw import RawChannel, claim, put, write
from tests.turns import new_place

LIMITS = LimitSettings(max_calls=2, max_channels=8, max_inflight_bytes=1000)


class Rig:
    def __init__(self) -> None:
        self.broker = open_in_memory(clock=ManualClock())
        self.broker.create_queue("q")
        self.limits = Limits(LIMITS)
        self.door = FlightDoor(self.broker, "127.0.0.1:0", self.limits)
        self.door.start()
        self.client = self.connect()

    def connect(self) -> flight.FlightClient:
        return flight.connect(f"grpc://{self.door.address}")

    def channel(self, verb: str, **options: object) -> RawChannel:
        return RawChannel(self.client, verb, **options)  # type: ignore[arg-type]

    def waiting_claims(self) -> int:
        return self.limits.in_flight


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.client.close()
    made.broker.interrupt_waits()
    made.door.stop()
    made.broker.close()


def until(holds: Callable[[], bool]) -> None:
    """Another thread or process gets there in its own time; a minute is for ever."""
    waited = threading.Event()
    for _ in range(6000):
        if holds():
            return
        waited.wait(0.01)
    raise AssertionError("it did not come to that within a minute")


def three() -> pa.RecordBatch:
    return encode_messages(check_messages([NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3")]))


def test_a_message_goes_in_and_out_and_its_lease_is_good_at_every_door(rig: Rig) -> None:
    written, _ = rig.channel("write").call(put(), three())
    answer, rows = rig.channel("claim").call(claim(limit=2, consumer="me"))
    assert rows is not None
    deliveries = decode_deliveries(rows, answer.queues)
    assert [delivery.payload for delivery in deliveries] == [b"1", b"2"]
    assert answer.now_ms == rig.broker.clock.now_ms()
    results = rig.broker.settle([Complete(delivery) for delivery in deliveries])
    assert [result.outcome for result in results] == ["completed"] * 2
    assert [result.id for result in results] == decode_result("enqueue_many", written.result)[:2]
    assert rig.broker.stats("q").ready == 1


def test_a_repeated_request_takes_effect_once_and_says_the_same(rig: Rig) -> None:
    call = put(place=new_place(rig.broker))
    first, again = [rig.channel("write").call(call, three())[0].result for _ in range(2)]
    assert first == again
    assert len(decode_result("enqueue_many", first)) == 3
    assert rig.broker.stats("q").ready == 3


def test_a_claim_takes_messages_of_several_queues(rig: Rig) -> None:
    rig.broker.create_queue("other")
    for queue in ("other", "q"):
        rig.broker.enqueue(queue, b"x")
    answer, rows = rig.channel("claim").call(claim(["other", "q"], limit=2))
    assert rows is not None
    assert {one.queue for one in decode_deliveries(rows, answer.queues)} == {"other", "q"}


def test_a_refusal_is_an_answer_and_the_channel_goes_on(rig: Rig) -> None:
    channel = rig.channel("write")
    answer, _ = channel.call(put("nowhere"), three())
    assert answer.error is not None
    assert answer.error.code == "queue_not_found"
    answer, _ = channel.call(put(), three())
    assert answer.error is None


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\xc1",
        b"\xff" * 9,
        encode({"verb": "enqueue_many"}),
        encode({"verb": "enqueue_many", "fields": {"queue": "q"}}),
        encode({"verb": "enqueue_many", "fields": encode({"queue": "q"}), "more": 1}),
        write("enqueue_many", queue="q", colour=1),
        write("enqueue_many", queue=7),
        write("enqueue_many", queue=["q"]),
        write("quarantine", queue="q"),
        b"\x81" * 5000,
    ],
)
def test_metadata_that_makes_no_sense_is_refused_and_nothing_is_stored(rig: Rig, metadata: bytes) -> None:
    channel = rig.channel("write")
    answer, _ = channel.call(metadata, three())
    assert answer.error is not None
    assert answer.error.code == "invalid_request"
    assert rig.broker.stats("q").ready == 0
    assert channel.call(put(), three())[0].error is None


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"payload": pa.array([b"1"]), "surprise": pa.array([1])}),
        pa.record_batch({"payload": pa.array(["text"])}),
        pa.record_batch({"payload": pa.array([b"1"]), "headers": pa.array([b"\xc1"])}),
        pa.record_batch({"payload": pa.array([b"1"]), "headers": pa.array([b"\x81\xa1a\x05"])}),
        pa.record_batch({"payload": pa.array([b"1"]), "delay_ms": pa.array([2**62])}),
        pa.record_batch({"payload": pa.array([b"1"]), "delay_ms": pa.array([-1])}),
        pa.record_batch({"payload": pa.array([b"1"]), "ttl_ms": pa.array([-(2**62)])}),
        pa.record_batch({"payload": pa.array([b"1"]), "fairness_key": pa.array([""])}),
        pa.RecordBatch.from_arrays([pa.array([b"1"]), pa.array([b"2"])], names=["payload", "payload"]),
        pa.RecordBatch.from_arrays(
            [
                pa.Array.from_buffers(
                    pa.binary(),
                    2,
                    [None, pa.py_buffer(struct.pack("<3i", 0, 1 << 20, 2)), pa.py_buffer(b"ab")],
                )
            ],
            names=["payload"],
        ),
        pa.RecordBatch.from_arrays(
            [
                pa.array([b"1"]),
                pa.Array.from_buffers(
                    pa.utf8(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
                ),
            ],
            names=["payload", "fairness_key"],
        ),
    ],
    ids=[
        "unknown column",
        "wrong type",
        "headers no MessagePack",
        "headers not text",
        "endless delay",
        "delay in the past",
        "ttl in the past",
        "empty key",
        "column twice",
        "offsets that lie",
        "no UTF-8",
    ],
)
def test_a_batch_that_makes_no_sense_is_refused_and_nothing_is_stored(
    rig: Rig, batch: pa.RecordBatch
) -> None:
    answer, _ = rig.channel("write").call(put(), batch)
    assert answer.error is not None
    assert answer.error.code == "invalid_request"
    assert rig.broker.stats("q").ready == 0


def test_a_column_that_is_left_out_has_its_default(rig: Rig) -> None:
    batch = pa.record_batch({"payload": pa.array([b"1"])})
    assert rig.channel("write").call(put(), batch)[0].error is None
    (delivery,) = rig.broker.claim("q")
    assert (delivery.fairness_key, delivery.weight, delivery.headers) == ("default", 1, {})


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (encode(Open("write", 2)), "version 2"),
        (encode(Open("steal")), "steal"),
        (b"\xc1", "Open"),
        (b"", "Open"),
    ],
)
def test_another_protocol_is_refused_at_the_door(rig: Rig, command: bytes, says: str) -> None:
    with pytest.raises(flight.FlightServerError, match=says):
        rig.channel("write", command=command).receive()


@pytest.mark.parametrize("verb", ["stats", "enqueue", "settle", "open_session", "close", "_core", ""])
def test_a_verb_without_rows_is_refused(rig: Rig, verb: str) -> None:
    channel = rig.channel("write")
    for batch in (None, three()):
        answer, _ = channel.call(write(verb, queue="q"), batch)
        assert answer.error is not None
        assert (answer.error.code, answer.error.fields["field"]) == ("invalid_request", "verb")
        assert "enqueue_many, staging.stage" in answer.error.message


@pytest.mark.parametrize("fields", [b"\xc1", encode([1]), encode({"queue": "q", "colour": 1})])
def test_fields_that_make_no_sense_are_refused(rig: Rig, fields: bytes) -> None:
    rig.broker.enqueue("q", b"1")
    answer, _ = rig.channel("claim").call(encode({"fields": fields}))
    assert answer.error is not None
    assert answer.error.code == "invalid_request"
    assert rig.broker.stats("q").ready == 1


@pytest.mark.parametrize("channel", ["claim", "read", "browse"])
def test_a_record_batch_at_a_channel_that_takes_none_is_refused(rig: Rig, channel: str) -> None:
    answer, _ = rig.channel(channel).call(claim(), three())
    assert answer.error is not None
    assert (answer.error.code, answer.error.fields["field"]) == ("invalid_request", "batch")


def test_what_was_claimed_for_a_client_that_is_gone_goes_back_and_counts_nothing(rig: Rig) -> None:
    gone = rig.connect()
    channel = RawChannel(gone, "claim")
    channel.send(claim(limit=5, wait="60s", consumer="gone"))
    until(lambda: rig.waiting_claims() == 1)
    channel.reader.cancel()
    gone.close()
    # The channel's thread still waits for messages; it learns of its client's end when it has some to hand
    # out.
    until(lambda: _claimed_and_returned(rig))
    assert rig.broker.peek("q")[0].attempts == 0


def _claimed_and_returned(rig: Rig) -> bool:
    if rig.waiting_claims() == 1 and not rig.broker.stats("q").ready:
        rig.broker.enqueue("q", b"back")
    stats = rig.broker.stats("q")
    return rig.waiting_claims() == 0 and (stats.ready, stats.leased) == (1, 0)


def test_more_calls_than_allowed_are_refused_and_say_when_to_try_again(rig: Rig) -> None:
    with rig.limits.call(), rig.limits.call():
        answer, _ = rig.channel("write").call(put(), three())
    assert answer.error is not None
    assert (answer.error.code, answer.error.fields["limit"]) == ("overloaded", 2)
    assert answer.error.fields["retry_after_ms"] > 0
    assert rig.broker.stats("q").ready == 0


def test_rows_count_as_bytes_at_work(rig: Rig) -> None:
    large = encode_messages(check_messages([NewMessage(bytes(600))]))
    with rig.limits.call(600):
        answer, _ = rig.channel("write").call(put(), large)
    assert answer.error is not None
    assert answer.error.code == "overloaded"


def test_more_channels_than_allowed_are_refused(rig: Rig) -> None:
    channels = [rig.channel("claim") for _ in range(LIMITS.max_channels)]
    for channel in channels:
        channel.call(claim())
    with pytest.raises(flight.FlightServerError, match="limit of 8 open channels"):
        rig.channel("claim").receive()


def test_waiting_claims_take_no_place_from_calls(rig: Rig) -> None:
    waiting = [rig.channel("claim") for _ in range(LIMITS.max_calls + 1)]
    for channel in waiting:
        channel.send(claim(wait="60s"))
    until(lambda: rig.waiting_claims() == LIMITS.max_calls + 1)
    assert rig.channel("write").call(put(), three())[0].error is None


def test_a_draining_door_refuses_new_calls_and_answers_those_that_wait(rig: Rig) -> None:
    waiting = rig.channel("claim")
    waiting.send(claim(wait="60s"))
    until(lambda: rig.waiting_claims() == 1)
    rig.door.drain()
    rig.broker.interrupt_waits()
    answer, rows = waiting.receive()
    assert (answer.error, rows) == (None, None)
    answer, _ = waiting.call(claim())
    assert answer.error is not None
    assert answer.error.code == "server_stopping"
    assert rig.limits.in_flight == 0


def test_an_error_that_nobody_is_there_to_hear_is_no_news_for_the_log(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise _ClientGone

    monkeypatch.setattr(_Channel, "_write", fail)
    channel = rig.channel("claim")
    channel.send(claim("nowhere"))
    with pytest.raises(StopIteration):
        channel.receive()
    assert caplog.records == []


def test_a_call_that_fails_by_a_defect_is_logged_with_its_verb_and_without_what_it_carried(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(work: object) -> None:
        raise RuntimeError("the payload of somebody's life")

    with replaced_work(Claim, fail):
        answer, _ = rig.channel("claim").call(claim())
    assert answer.error is not None
    # Of the transaction nothing was written, also for others who take part in it: send it again.
    assert answer.error.code == "unavailable"
    assert "somebody" not in answer.error.message
    (record,) = caplog.records
    line = Lines("text").format(record)
    assert "verb=claim" in line
    assert "somebody" not in line


def test_the_schema_of_messages_is_the_one_that_is_documented() -> None:
    assert MESSAGES.names == [
        "payload",
        "headers",
        "fairness_key",
        "weight",
        "throttle_keys",
        "stream",
        "delay_ms",
        "dedup_key",
        "ttl_ms",
    ]
