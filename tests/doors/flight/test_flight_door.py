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
from fairlead.wire.calls import ClaimCall, EnqueueCall, Open, SettleCall, encode
from fairlead.wire.deliveries import decode_deliveries
from fairlead.wire.messages import decode_ids, encode_messages
from fairlead.wire.schemas import MESSAGES
from fairlead.wire.settlement_rows import settlement_rows
from fairlead.wire.settlements import decode_results, encode_settlements
from tests.doors.flight.raw import RawChannel, packed
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


def test_a_message_goes_in_out_and_is_completed(rig: Rig) -> None:
    _, ids = rig.channel("enqueue").call(EnqueueCall([("q", 3)]), three())
    answer, rows = rig.channel("claim").call(ClaimCall("q", limit=2, consumer="me"))
    assert rows is not None
    deliveries = decode_deliveries(rows, answer.queues)
    assert [delivery.payload for delivery in deliveries] == [b"1", b"2"]
    assert answer.now_ms == rig.broker.clock.now_ms()
    sent, _ = settlement_rows([Complete(delivery) for delivery in deliveries])
    _, results = rig.channel("settle").call(SettleCall(), encode_settlements(sent))
    assert results is not None
    assert ids is not None
    assert [result.id for result in decode_results(results)] == decode_ids(ids)[:2]
    assert rig.broker.stats("q").ready == 1


def test_a_repeated_request_takes_effect_once_and_says_the_same(rig: Rig) -> None:
    call = EnqueueCall([("q", 3)], **new_place(rig.broker))
    first, again = [rig.channel("enqueue").call(call, three())[1] for _ in range(2)]
    assert first is not None
    assert again is not None
    assert first.equals(again)
    assert rig.broker.stats("q").ready == 3


def test_messages_for_several_queues_travel_in_one_request(rig: Rig) -> None:
    rig.broker.create_queue("other")
    rig.channel("enqueue").call(EnqueueCall([("other", 1), ("q", 2)]), three())
    assert (rig.broker.stats("other").ready, rig.broker.stats("q").ready) == (1, 2)


def test_a_refusal_is_an_answer_and_the_channel_goes_on(rig: Rig) -> None:
    channel = rig.channel("enqueue")
    answer, _ = channel.call(EnqueueCall([("nowhere", 3)]), three())
    assert answer.error is not None
    assert answer.error.code == "queue_not_found"
    answer, _ = channel.call(EnqueueCall([("q", 3)]), three())
    assert answer.error is None


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\xc1",
        b"\xff" * 9,
        encode({"queues": "q"}),
        encode({"queues": [["q", 3]], "more": 1}),
        encode({"queues": [["q", 2]]}),
        encode({"queues": [["q", 4]]}),
        encode({"queues": [["q", -1], ["q", 4]]}),
        encode({"queues": [[7, 3]]}),
        b"\x81" * 5000,
    ],
)
def test_metadata_that_makes_no_sense_is_refused_and_nothing_is_stored(rig: Rig, metadata: bytes) -> None:
    channel = rig.channel("enqueue")
    answer, _ = channel.call(metadata, three())
    assert answer.error is not None
    assert answer.error.code == "invalid_request"
    assert rig.broker.stats("q").ready == 0
    assert channel.call(EnqueueCall([("q", 3)]), three())[0].error is None


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
    answer, _ = rig.channel("enqueue").call(EnqueueCall([("q", batch.num_rows)]), batch)
    assert answer.error is not None
    assert answer.error.code == "invalid_request"
    assert rig.broker.stats("q").ready == 0


def test_a_column_that_is_left_out_has_its_default(rig: Rig) -> None:
    batch = pa.record_batch({"payload": pa.array([b"1"])})
    assert rig.channel("enqueue").call(EnqueueCall([("q", 1)]), batch)[0].error is None
    (delivery,) = rig.broker.claim("q")
    assert (delivery.fairness_key, delivery.weight, delivery.headers) == ("default", 1, {})


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (encode(Open("enqueue", 2)), "version 2"),
        (encode(Open("steal")), "steal"),
        (b"\xc1", "Open"),
        (b"", "Open"),
    ],
)
def test_another_protocol_is_refused_at_the_door(rig: Rig, command: bytes, says: str) -> None:
    with pytest.raises(flight.FlightServerError, match=says):
        rig.channel("enqueue", command=command).receive()


def test_an_unknown_verb_or_field_is_refused(rig: Rig) -> None:
    channel = rig.channel("request")
    wrong = [
        ("close", b"\x80"),
        ("_core", b"\x80"),
        ("stats", encode({"queue": "q", "colour": 1})),
        ("stats", b"\xc1"),
        ("stats", encode([1])),
    ]
    for verb, arguments in wrong:
        answer, _ = channel.call(packed(verb, arguments))
        assert answer.error is not None
        assert answer.error.code == "invalid_request"
    assert channel.ask("stats", queue="q").ready == 0


def test_a_record_batch_beside_a_request_that_travels_as_a_record_is_refused(rig: Rig) -> None:
    answer, _ = rig.channel("request").call(
        packed("stats", encode({"queue": "q"})), pa.record_batch({"a": [1]})
    )
    assert answer.error is not None
    assert answer.error.code == "invalid_request"


def test_deliveries_stream_until_the_credit_is_used_up(rig: Rig) -> None:
    channel = rig.channel("claim")
    channel.send(encode(ClaimCall("q", wait_ms=60_000, credit=3, started=False)))
    rig.broker.enqueue("q", b"1")
    answer, rows = channel.receive()
    assert rows is not None
    assert (answer.done, rows.num_rows) == (False, 1)
    rig.broker.enqueue_many("q", [NewMessage(b"2"), NewMessage(b"3"), NewMessage(b"4")])
    answer, rows = channel.receive()
    assert rows is not None
    assert (answer.done, rows.num_rows) == (False, 2)
    answer, rows = channel.receive()
    assert (answer.done, answer.credit, rows) == (True, 0, None)
    assert rig.broker.stats("q").ready == 1


def test_credit_that_was_not_used_is_told_when_the_wait_is_over(rig: Rig) -> None:
    channel = rig.channel("claim")
    rig.broker.enqueue("q", b"1")
    channel.send(encode(ClaimCall("q", wait_ms=0, credit=3)))
    assert channel.receive()[0].done is False
    answer, _ = channel.receive()
    assert (answer.done, answer.credit) == (True, 2)


def test_what_was_claimed_for_a_client_that_is_gone_goes_back_and_counts_nothing(rig: Rig) -> None:
    gone = rig.connect()
    channel = RawChannel(gone, "claim")
    channel.send(encode(ClaimCall("q", limit=5, wait_ms=60_000, consumer="gone")))
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
        answer, _ = rig.channel("enqueue").call(EnqueueCall([("q", 3)]), three())
    assert answer.error is not None
    assert (answer.error.code, answer.error.fields["limit"]) == ("overloaded", 2)
    assert answer.error.fields["retry_after_ms"] > 0
    assert rig.broker.stats("q").ready == 0


def test_more_channels_than_allowed_are_refused(rig: Rig) -> None:
    channels = [rig.channel("claim") for _ in range(LIMITS.max_channels)]
    for channel in channels:
        channel.call(ClaimCall("q"))
    with pytest.raises(flight.FlightServerError, match="limit of 8 open channels"):
        rig.channel("claim").receive()


def test_waiting_claims_take_no_place_from_calls(rig: Rig) -> None:
    waiting = [rig.channel("claim") for _ in range(LIMITS.max_calls + 1)]
    for channel in waiting:
        channel.send(encode(ClaimCall("q", wait_ms=60_000)))
    until(lambda: rig.waiting_claims() == LIMITS.max_calls + 1)
    assert rig.channel("enqueue").call(EnqueueCall([("q", 3)]), three())[0].error is None


def test_a_draining_door_refuses_new_calls_and_answers_those_that_wait(rig: Rig) -> None:
    waiting = rig.channel("claim")
    waiting.send(encode(ClaimCall("q", wait_ms=60_000)))
    until(lambda: rig.waiting_claims() == 1)
    rig.door.drain()
    rig.broker.interrupt_waits()
    answer, rows = waiting.receive()
    assert (answer.error, rows) == (None, None)
    answer, _ = waiting.call(ClaimCall("q"))
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
    channel.send(encode(ClaimCall("nowhere")))
    with pytest.raises(StopIteration):
        channel.receive()
    assert caplog.records == []


def test_a_call_that_fails_by_a_defect_is_logged_with_its_verb_and_without_what_it_carried(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(work: object) -> None:
        raise RuntimeError("the payload of somebody's life")

    with replaced_work(Claim, fail):
        answer, _ = rig.channel("claim").call(ClaimCall("q"))
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
