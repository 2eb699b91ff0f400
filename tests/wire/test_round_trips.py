"""The law of the wire: what one side encodes, the other decodes to equal values."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead
from fairlead import (
    Complete,
    DeadFilter,
    DeliveryRef,
    Extend,
    Fail,
    FailureReason,
    NewMessage,
    Release,
    SettleResult,
    Start,
    errors,
)
from fairlead.model.checks import check_messages
from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureRecord
from fairlead.model.ids import show_id
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message, MessageState, pack_headers
from fairlead.model.settle import Outcome
from fairlead.request import Request
from fairlead.verbs.dead_letters import Redrive
from fairlead.verbs.enqueue import Quarantine
from fairlead.verbs.inspect import Explain, ExplainQueue, Find, GetFailureMetrics, Peek, Stats
from fairlead.verbs.operate import Prune, Retry
from fairlead.verbs.queues import ListQueues
from fairlead.verbs.settle import Ack
from fairlead.wire.deliveries import decode_deliveries, encode_deliveries, runs_of
from fairlead.wire.faults import Fault, error_of, fault_of
from fairlead.wire.messages import decode_messages, encode_messages
from fairlead.wire.packed import decode_answer, decode_request, encode_answer, encode_request
from fairlead.wire.schemas import SETTLEMENTS
from fairlead.wire.settlement_rows import OUTCOMES, settlement_rows
from fairlead.wire.settlements import decode_settlements
from fairlead.wire.statuses import STATUSES, status_of

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
raw_ids = st.binary(min_size=16, max_size=16)
durations = st.integers(0, 10**9).map(lambda ms: timedelta(milliseconds=ms))
headers = st.dictionaries(text, text, max_size=3)

new_messages = st.builds(
    NewMessage,
    payload=st.binary(max_size=50),
    headers=headers,
    fairness_key=text | st.just("default"),
    weight=st.integers(1, 1000),
    throttle_keys=st.lists(text, max_size=3),
    stream=st.none() | text,
    delay=st.none() | durations,
    dedup_key=st.none() | text,
    ttl=st.none() | durations,
)


@given(st.lists(new_messages, max_size=8))
def test_messages_arrive_as_the_engine_would_have_checked_them_at_home(messages: list[NewMessage]) -> None:
    checked = check_messages(messages)
    assert check_messages(decode_messages(encode_messages(checked))) == checked


def test_plain_messages_arrive_by_the_short_way() -> None:
    plain = [NewMessage(b"a"), NewMessage(b"", fairness_key="k", weight=7)]
    assert check_messages(decode_messages(encode_messages(check_messages(plain)))) == check_messages(plain)


failures = st.builds(
    FailureRecord,
    st.integers(0, 2**50),
    st.integers(1, 9),
    st.sampled_from([1, 99]),
    text,
    text,
    text,
    st.integers(0, 2**50),
)
states = st.none() | st.builds(
    MessageState,
    queue_id=st.just(0),
    attempts=st.integers(0, 2**31 - 1),
    progress=st.integers(0, 2**63 - 1),
    carry=st.binary(max_size=9),
    failures=st.lists(failures, max_size=3).map(tuple),
    dead_since_ms=st.integers(0, 2**50),
    redrives=st.integers(0, 1),
    seq=st.integers(0, 2**40),
    lane=st.sampled_from([b"", pack_lane("redriven", ("slow",))]),
    weight=st.integers(0, 1000),
)
messages = st.builds(
    Message,
    id=raw_ids,
    queue_id=st.integers(1, 99),
    lane=st.tuples(text, st.lists(text, max_size=2)).map(lambda parts: pack_lane(parts[0], tuple(parts[1]))),
    weight=st.integers(1, 1000),
    headers=headers.map(pack_headers),
    payload=st.binary(max_size=50),
    enqueued_ms=st.integers(0, 2**50),
    place=st.integers(0, 2**50),
    stream=st.just("") | text,
    seq=st.integers(0, 2**40),
)
deliveries = st.builds(
    Delivery,
    messages,
    states,
    st.sampled_from(["a", "b.dlq"]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**50),
    st.integers(1, 2**31 - 1),
    st.none() | text,
)
_PROPERTIES = dict(inspect.getmembers(Delivery, lambda part: isinstance(part, property)))
#: What a consumer can see of a delivery. The message as it is stored stays at the engine.
SEEN = [*(_PROPERTIES.keys() - {"message"}), "queue", "deliveries", "source", "lease_until"]


@given(st.lists(deliveries, max_size=6))
def test_a_consumer_sees_the_same_delivery_on_both_sides(given_out: list[Delivery]) -> None:
    arrived = decode_deliveries(encode_deliveries(given_out), runs_of(given_out))
    assert [[getattr(d, name) for name in SEEN if name != "seq" or d.stream] for d in arrived] == [
        [getattr(d, name) for name in SEEN if name != "seq" or d.stream] for d in given_out
    ]


refs = st.builds(DeliveryRef, raw_ids.map(show_id), st.integers(0, 2**64 - 1).map(lambda lease: f"{lease:x}"))
reasons = st.sampled_from(FailureReason)
settlements = st.one_of(
    st.builds(Complete, refs, st.integers(0, 2**63 - 1)),
    st.builds(Fail, refs, text, reasons, st.integers(0, 2**63 - 1), st.none() | durations, st.just(False)),
    st.builds(Fail, refs, dead=st.just(True)),
    st.builds(Release, refs, st.booleans()),
    st.builds(Extend, refs, st.none() | durations, st.integers(0, 7), st.none() | st.binary(max_size=9)),
    st.builds(Start, refs),
)


@given(st.lists(settlements, max_size=8))
def test_settlements_arrive(items: list[fairlead.model.settle.Settlement]) -> None:
    rows, refused = settlement_rows(items)
    assert refused == {}
    batch = pa.RecordBatch.from_pylist([msgspec.structs.asdict(row) for row in rows], schema=SETTLEMENTS)
    arrived = decode_settlements(batch)
    assert [type(item) for item in arrived] == [type(item) for item in items]
    for got, sent in zip(arrived, items, strict=True):
        assert (got.delivery.id, got.delivery.lease) == (sent.delivery.id, sent.delivery.lease)
        assert [getattr(got, name) for name in got.__struct_fields__[1:]] == [
            getattr(sent, name) for name in sent.__struct_fields__[1:]
        ]


def test_an_item_that_cannot_be_sent_has_its_result_and_spoils_no_other() -> None:
    ref = DeliveryRef(show_id(bytes(16)), "1")
    wrong = [
        Fail(ref, reason="tired"),
        Complete("x"),
        "nothing",
        Fail(ref, error=1),
        Extend(ref, "soon"),
        Complete(ref, -1),
    ]  # type: ignore[arg-type,list-item]
    rows, refused = settlement_rows([Complete(ref), *wrong, Start(ref)])  # type: ignore[list-item]
    assert [row.action for row in rows] == [0, 4]
    assert sorted(refused) == [1, 2, 3, 4, 5, 6]
    assert all(result.outcome == "invalid" and result.error for result in refused.values())


def test_a_lease_token_that_is_none_of_ours_still_travels_and_fences() -> None:
    rows, refused = settlement_rows(
        [
            Complete(DeliveryRef(show_id(bytes(16)), "not hex")),
            Complete(DeliveryRef(show_id(bytes(16)), "-5")),
        ]
    )
    assert refused == {}
    assert [row.lease for row in rows] == [2**64 - 1] * 2


times = st.integers(0, 2**50)
maybe_text = st.just("") | text
results = st.builds(
    SettleResult, st.just(b"") | raw_ids, st.sampled_from(OUTCOMES), maybe_text, times, times, maybe_text
)


def test_every_outcome_of_the_engine_has_its_number() -> None:
    assert set(OUTCOMES) == set(Outcome.__args__)  # type: ignore[attr-defined]


def every_error(kind: type[errors.FairleadError] = errors.FairleadError) -> list[type[errors.FairleadError]]:
    below = [found for child in kind.__subclasses__() for found in every_error(child)]
    return below or [kind]


def example_of(kind: type[errors.FairleadError]) -> errors.FairleadError:
    values = {
        "int": 7,
        "str": "some text",
        "list[str]": ["a", "b"],
        "int | None": None,
        "object": "anything",
        "Sequence[tuple[str, int | None, str, str]]": [
            ["a.toml", 3, "queue.a", "wrong"],
            ["b.toml", None, "", "too"],
        ],
    }
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return kind(*[values[parameter.annotation] for parameter in parameters])


#: Raised where runbooks are read, which no server does.
NEVER_SENT = {errors.RunbookInvalid}


@pytest.mark.parametrize(
    "kind", [kind for kind in every_error() if kind not in NEVER_SENT], ids=lambda kind: kind.__name__
)
def test_an_error_arrives_as_the_class_it_left_as_with_its_fields(kind: type[errors.FairleadError]) -> None:
    sent = example_of(kind)
    got = error_of(fault_of(sent))
    assert type(got) is kind
    assert (str(got), got.fields) == (str(sent), sent.fields)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_status(kind: type[errors.FairleadError]) -> None:
    assert kind in STATUSES
    status = status_of(example_of(kind))
    assert 400 <= status.http < 600
    assert status.exit_code > 2


def test_a_code_from_a_newer_server_becomes_an_error_all_the_same() -> None:
    assert isinstance(error_of(Fault("not_thought_of_yet", "wait")), errors.FairleadError)


def test_a_stranger_learns_nothing_from_an_error_that_is_not_ours() -> None:
    fault = fault_of(KeyError("secret"))
    assert "secret" not in repr(fault)
    assert fault.code == "broken_invariant"


def test_requests_arrive_as_the_engine_takes_them() -> None:
    chosen = DeadFilter(reason=FailureReason.UNKNOWN, header=("a", "b"), older_than=timedelta(seconds=3))
    sent = Redrive("orders", ids=("a", "b"), filter=chosen, count=3)
    got = decode_request(Redrive, encode_request(sent))
    assert isinstance(got, Redrive)
    assert got.filter == DeadFilter(reason=99, header=("a", "b"), older_than="3000ms")
    assert (got.queue, got.ids, got.count, got.dry_run) == ("orders", ["a", "b"], 3, False)
    messages = [NewMessage(b"\xff", headers={"a": "b"}, delay="3s")]
    put = decode_request(Quarantine, encode_request(Quarantine("q", messages)))
    assert isinstance(put, Quarantine)
    assert check_messages(put.messages) == check_messages(messages)
    pruned = encode_request(Prune("q", timedelta(milliseconds=1500)))
    assert decode_request(Prune, pruned) == Prune("q", "1500ms")


def test_the_views_of_a_living_broker_arrive(tmp_path: pytest.TempPathFactory) -> None:
    with fairlead.open(tmp_path / "data", durability="os") as broker:  # type: ignore[operator]
        broker.create_queue("q", retry={"policy": "fixed", "cooldown": "1m", "attempts": 3})
        ids = broker.enqueue_many(
            "q", [NewMessage(b"\x00\xff", headers={"h": "v"}, stream="s"), NewMessage(b"2", fairness_key="k")]
        )
        (held, *_) = broker.claim("q", limit=2)
        broker.settle([Fail(held, error="no", reason="dependency_failure", progress=5)])
        broker.quarantine("q", [NewMessage(b"dead")], error="bad")
        requests: list[Request[Any]] = [
            ListQueues(),
            Stats("q", keys=True),
            Find(ids[0]),
            Peek("q.dlq"),
            GetFailureMetrics("q"),
            Explain(ids[0]),
            ExplainQueue("q"),
            Retry("q", filter=DeadFilter()),
            Redrive("q", dry_run=True),
            Ack("q", ids[1]),
        ]
        for request in requests:
            value = broker.do(request)
            assert decode_answer(request, encode_answer(request, value, 0)) == (value, 0), request
