"""Requests, answers and errors as MessagePack: what one side encodes the other decodes to equal values."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, Release, SettleResult, Start, errors
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.delivery import Delivery
from fairlead.model.message import Message
from fairlead.model.settle import LeaseRef
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersRead, ConsumersShow
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.operate import Retry
from fairlead.verbs.queues import Pause
from fairlead.verbs.settle import Settle
from fairlead.wire.error_lines import error_line, read_error
from fairlead.wire.packed import decode_answer, decode_request, encode_answer, encode_request
from tests.wire.test_round_trips import deliveries, new_messages, results

_ID = bytes(range(16))


def _there(request: Any) -> Any:
    return decode_request(type(request), encode_request(request))


def _back(request: Any, answer: Any) -> Any:
    return decode_answer(request, encode_answer(request, answer, 5))


def _as_arrived(message: NewMessage) -> tuple[object, ...]:
    """Durations travel as text, tuples as lists."""
    payload, headers, key, weight, throttle_keys, stream, delay, dedup_key, ttl = astuple(message)
    times = [None if one is None else f"{round(one.total_seconds() * 1000)}ms" for one in (delay, ttl)]
    return payload, headers or {}, key, weight, [*throttle_keys], stream, times[0], dedup_key, times[1]


@given(st.lists(new_messages, max_size=5))
def test_messages_arrive_as_they_were_given(messages: list[NewMessage]) -> None:
    arrived = _there(EnqueueMany("orders", messages)).messages
    assert all(type(one) is NewMessage for one in arrived)
    shown = [(p, h or {}, k, w, [*t], *rest) for p, h, k, w, t, *rest in map(astuple, arrived)]
    assert shown == [*map(_as_arrived, messages)]


def test_messages_of_nothing_but_payloads_travel_as_one_list() -> None:
    raw = encode_request(EnqueueMany("q", [NewMessage(b"one"), NewMessage(b"two")]))
    assert msgspec.msgpack.decode(raw) == {"queue": "q", "messages": {"payload": [b"one", b"two"]}}


def test_columns_of_messages_must_fit_together() -> None:
    for messages in (
        {"payload": []},
        {"payload": [b"one", b"two"], "weight": [1, 2, 3]},
        {"payload": [b"one"], "delay": ["1s"]},
        {"payload": "one"},
    ):
        raw = msgspec.msgpack.encode({"queue": "q", "messages": messages})
        with pytest.raises(errors.InvalidRequest, match="messages"):
            decode_request(EnqueueMany, raw)


def test_a_value_that_is_wrong_reaches_the_engine_in_columns_too() -> None:
    message = NewMessage(b"one", fairness_key="", weight=0)
    assert _there(EnqueueMany("q", [message])) == EnqueueMany("q", [message])


def test_every_field_of_a_claim_arrives() -> None:
    claim = Claim("q", 3, "5s", "ann", 2, "t", False)
    assert _there(claim) == claim
    assert _there(Claim(["q", "r"])) == Claim(["q", "r"])


def test_messages_may_be_maps() -> None:
    raw = msgspec.msgpack.encode({"queue": "q", "messages": [{"payload": b"one", "weight": 2}]})
    assert decode_request(EnqueueMany, raw) == EnqueueMany("q", [NewMessage(b"one", weight=2)])


def test_settlements_arrive_as_they_were_given() -> None:
    one = LeaseRef(_ID, 7)
    items = [
        Complete(one),
        Complete(one, 3),
        Fail(one, "no", 4),
        Fail(one, dead=True),
        Release(one, True),
        Start(one),
        Extend(one, carry=b"c"),
    ]
    assert _there(Settle(items)).items == [
        *items[:4],
        Release(one, True),
        Start(one),
        Extend(one, None, 0, b"c"),
    ]


def test_an_exchange_arrives_as_it_was_given() -> None:
    request = Exchange(
        [
            Settle([Complete(LeaseRef(_ID, 7))]),
            Enqueue("q", b"p"),
            EnqueueMany("r", [NewMessage(b"x")]),
            Claim("q", 2),
        ]
    )
    assert _there(request) == request


def test_a_filter_arrives_as_a_record() -> None:
    request = Retry("q", filter=DeadFilter(header=("h", "v")))
    assert _there(request) == request


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        (EnqueueMany, {"queue": "q", "messages": [[]]}, "messages"),
        (EnqueueMany, {"queue": "q", "messages": [[b"p", *[None] * 9]]}, "messages"),
        (EnqueueMany, {"queue": "q", "messages": [{"weight": 2}]}, "messages"),
        (Settle, {"items": [[0, _ID]]}, "items"),
        (Settle, {"items": [[9, _ID, 1, ""]]}, "action"),
        (Settle, {"items": [[1, _ID, 1, "", 1, 0, "soon"]]}, "items"),
        (Exchange, {"requests": [["nothing", {}]]}, "requests"),
        (Exchange, {"requests": [[7, {}]]}, "requests"),
        (Claim, {"queue": "q", "limt": 3}, "arguments"),
        (Claim, {}, "arguments"),
        (Claim, {1: 2}, "arguments"),
        (Claim, [], "arguments"),
    ],
)
def test_a_request_that_cannot_be_made_is_refused(kind: Any, fields: Any, field: str) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        decode_request(kind, msgspec.msgpack.encode(fields))
    assert refused.value.field == field


def test_values_that_are_wrong_are_left_to_the_engine() -> None:
    raw = msgspec.msgpack.encode({"queue": 7, "limit": "many"})
    assert decode_request(Claim, raw) == Claim(7, "many")  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x81\xa1", b"\x91" * 100_000, b"\x81\xa1\xffx\x01"])
def test_bytes_that_are_no_map_are_refused(raw: bytes) -> None:
    with pytest.raises(errors.InvalidRequest):
        decode_request(Claim, raw)


def test_values_that_are_nested_deeply_are_refused() -> None:
    value: Any = "x"
    for _ in range(100):
        value = [value]
    with pytest.raises(errors.InvalidRequest, match="nested"):
        decode_request(Claim, msgspec.msgpack.encode({"queue": value}))


def _shown(delivery: Delivery) -> tuple[object, ...]:
    names = (
        "id queue payload headers fairness_key weight throttle_keys stream seq attempts deliveries progress carry failures "
        "source dead_since enqueued_at lease lease_until"
    )
    return tuple(getattr(delivery, name) for name in names.split())


@given(st.lists(deliveries, max_size=5))
def test_deliveries_arrive_as_they_were_given(given: list[Delivery]) -> None:
    arrived, now_ms = _back(Claim("q"), given)
    assert now_ms == 5
    assert [*map(_shown, arrived)] == [*map(_shown, given)]
    assert [one.stored.columns_of([one]).payloads for one in arrived] == [[one.payload] for one in given]


@given(st.lists(results, max_size=5))
def test_results_arrive_as_they_were_given(given: list[SettleResult]) -> None:
    assert _back(Settle([]), given) == (given, 5)


def test_values_arrive_as_records() -> None:
    given = ConsumerInfo(name="c", queue="q", generation=1, last_closed=0, ttl_ms=1, seen_at=2, expires_at=3)
    assert _back(ConsumersShow("c", "q"), given) == (given, 0)
    assert _back(Enqueue("q", b""), "id") == ("id", 0)
    assert _back(Pause("q"), None) == (None, 0)


def _delivery() -> Delivery:
    return Delivery(Message(_ID, 0, b"\0\x01k\0\0", 1, b"", b"p", 1, 0), None, "q", 7, 9, 1)


def test_an_exchange_is_answered_part_by_part() -> None:
    request = Exchange([Settle([]), Enqueue("q", b""), Claim("q")])
    given = [[SettleResult(_ID, "completed")], "id", [_delivery()]]
    assert _back(request, given) == (given, 5)


def test_pages_arrive_page_by_page() -> None:
    pages, _ = _back(ConsumersRead("c", "q", 1, 1), iter([[_delivery()], []]))
    assert [*pages] == [[_delivery()], []]


@pytest.mark.parametrize("raw", [b"", b"\x90", b"\xc0", b"\x9f" * 9000, encode_answer(Settle([]), [], 0)])
def test_bytes_that_are_no_answer_are_told_as_another_protocol(raw: bytes) -> None:
    for request in (Claim("q"), Exchange([Claim("q")])):
        with pytest.raises(errors.ProtocolMismatch):
            decode_answer(request, raw)


def test_columns_that_do_not_fit_together_are_no_answer() -> None:
    columns = msgspec.msgpack.decode(encode_answer(Claim("q"), [_delivery(), _delivery()], 0))
    for at, lie in (
        (2, b"x"),
        (4, [1, 2, 3]),
        (7, ["a", "b", "c"]),
        (1, [("q", 1)]),
        (1, [("q", 3), ("r", -1)]),
    ):
        raw = msgspec.msgpack.encode([*columns[:at], lie, *columns[at + 1 :]])
        with pytest.raises((errors.ProtocolMismatch, errors.InvalidRequest)):
            decode_answer(Claim("q"), raw)


@pytest.mark.parametrize(
    "error",
    [
        errors.QueueNotFound("orders"),
        errors.Overloaded("calls", 5, 50),
        errors.InvalidRequest("a\r\nb", "c", "\ud800"),
    ],
)
def test_an_error_is_one_line_from_which_our_client_makes_it_anew(error: errors.FairleadError) -> None:
    line = error_line(error, packed=True)
    assert line.startswith(error.code.upper().encode() + b" ")
    assert b"\r" not in line
    assert b"\n" not in line
    again = read_error(line.decode())
    assert type(again) is type(error)
    assert again.message == error.message.encode(errors="replace").decode()
    assert again.fields.keys() == error.fields.keys()


def test_an_error_for_people_has_a_code_and_a_message() -> None:
    line = error_line(errors.QueueNotFound("orders")).decode()
    again = read_error(line)
    assert (type(again), again.message) == (errors.QueueNotFound, errors.QueueNotFound("orders").message)


def test_the_codec_needs_neither_arrow_nor_an_engine() -> None:
    code = (
        "import sys, fairlead.wire.packed, fairlead.wire.error_lines\n"
        "print([name for name in ('pyarrow', 'rocksdict', 'lupa', 'fairlead.engine.engine') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
