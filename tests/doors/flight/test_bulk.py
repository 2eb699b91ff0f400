"""Answers of many parts, and requests in bulk, at the Flight door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import fairlead
from fairlead import NewMessage
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.testing import run_server
from fairlead.testing.sizes import size
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersRead
from fairlead.wire.calls import Answer
from fairlead.wire.schemas import SETTLEMENTS
from fairlead.wire.writes import decode_result
from tests.doors.flight.raw import RawChannel, pages, write
from tests.doors.flight.test_flight_door import Rig, rig, three, until  # noqa: F401 - a fixture

#: Too many to fit into what a connection holds while nobody reads.
MANY = 3000
STAGED = {"token": "t", "chunk": "c", "queue": "q"}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("read_page_messages"), 1)


def taken(rig: Rig, count: int, payload: bytes = b"x" * 100) -> ConsumersRead:  # noqa: F811
    """A claim of so many, and the call that reads it."""
    rig.broker.enqueue_many("q", [NewMessage(payload)] * count)
    generation = rig.broker.consumers.register("etl", "q").generation
    claimed = rig.broker.consumers.claim("etl", "q", generation, 1)
    assert claimed.count == count
    return ConsumersRead("etl", "q", generation, 1)


def parts_of(channel: RawChannel) -> Iterator[tuple[Answer, pa.RecordBatch | None]]:
    while True:
        answer, body = channel.receive()
        yield answer, body
        if answer.done:
            return


def test_a_reading_comes_in_parts_and_the_channel_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(size("read_page_messages"), 4)
    call = taken(rig, 10)
    channel = rig.channel("read")
    for _ in range(2):
        channel.send(pages(call))
        parts = [
            (answer.done, 0 if body is None else body.num_rows, answer.queues)
            for answer, body in parts_of(channel)
        ]
        assert parts == [
            (False, 4, [("q", 4)]),
            (False, 4, [("q", 4)]),
            (False, 2, [("q", 2)]),
            (True, 0, []),
        ]


def test_a_part_ends_with_the_row_that_fills_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(size("read_page_bytes"), 1000)
    call = taken(rig, 5, b"x" * 600)
    channel = rig.channel("read")
    channel.send(pages(call))
    assert [0 if body is None else body.num_rows for _, body in parts_of(channel)] == [2, 2, 1, 0]


def test_the_largest_messages_travel_alone(rig: Rig) -> None:  # noqa: F811
    rig.broker.enqueue_many("q", [NewMessage(bytes(MAX_PAYLOAD_BYTES))] * 3)
    channel = rig.channel("browse")
    channel.send(pages(Browse("q")))
    sizes = [0 if body is None else body.num_rows for _, body in parts_of(channel)]
    assert (max(sizes), sum(sizes)) == (1, 3)


@pytest.mark.usefixtures("one_by_one")
def test_what_is_asked_for_again_begins_behind_what_came(rig: Rig) -> None:  # noqa: F811
    call = taken(rig, 6)
    whole = read_ids(rig, call)
    assert len(set(whole)) == 6
    for at, message_id in enumerate(whole, 1):
        assert read_ids(rig, msgspec.structs.replace(call, after=message_id)) == whole[at:]
    answer, _ = rig.channel("read").call(pages(msgspec.structs.replace(call, after=b"of another claim")))
    assert answer.error is not None
    assert answer.error.code == "invalid_request"


def read_ids(rig: Rig, call: ConsumersRead) -> list[bytes]:  # noqa: F811
    channel = rig.channel("read")
    channel.send(pages(call))
    return [
        raw_id
        for _, body in parts_of(channel)
        if body is not None
        for raw_id in body.column("id").to_pylist()
    ]


@pytest.mark.usefixtures("one_by_one")
def test_an_error_between_two_parts_ends_the_answer_and_not_the_channel(rig: Rig) -> None:  # noqa: F811
    call = taken(rig, MANY)
    channel = rig.channel("read")
    channel.send(pages(call))
    parts = parts_of(channel)
    next(parts)
    rig.broker.consumers.release("etl", "q")
    *came, (last, body) = parts
    assert last.error is not None
    assert (last.error.code, body) == ("claim_released", None)
    assert len(came) < MANY
    again, _ = channel.call(pages(call))
    assert again.error is not None
    assert again.error.code == "claim_released"


@pytest.mark.usefixtures("one_by_one")
def test_whoever_does_not_read_on_holds_up_nothing_and_a_stop_ends_the_answer(rig: Rig) -> None:  # noqa: F811
    call = taken(rig, MANY)
    channel = rig.channel("read")
    channel.send(pages(call))
    parts = parts_of(channel)
    next(parts)
    until(lambda: rig.limits.in_flight == 0)
    rig.door.drain()
    *came, (last, _) = parts
    assert last.error is not None
    assert last.error.code == "server_stopping"
    assert len(came) < MANY


def test_a_part_is_a_call_among_others(rig: Rig) -> None:  # noqa: F811
    call = taken(rig, 1)
    with rig.limits.call(), rig.limits.call():
        answer, _ = rig.channel("read").call(pages(call))
    assert answer.error is not None
    assert answer.error.code == "overloaded"


def test_a_stage_and_a_record_without_a_batch_are_refused(rig: Rig) -> None:  # noqa: F811
    channel = rig.channel("write")
    for verb, fields in (("staging.stage", STAGED), ("consumers.record", {"name": "etl", "queue": "q"})):
        answer, _ = channel.call(write(verb, **fields))
        assert answer.error is not None
        assert (answer.error.code, answer.error.fields["field"]) == ("invalid_request", "batch")


def test_a_chunk_is_staged_and_an_outcome_of_a_wrong_kind_refuses_all(rig: Rig) -> None:  # noqa: F811
    answer, body = rig.channel("write").call(write("staging.stage", **STAGED, ttl="2h"), three())
    assert (decode_result("staging.stage", answer.result).count, body) == (3, None)
    listed = rig.broker.staging.list()[0]
    assert (listed.messages, listed.expires_at - listed.staged_at) == (3, 2 * 3600 * 1000)
    call = taken(rig, 2)
    first, second = rig.broker.consumers.read("etl", "q", call.generation, 1)
    rows = [
        {"action": action, "id": one.raw_id, "lease": one.claim_id, "duration_ms": 1000}
        for action, one in ((2, first), (3, second))
    ]
    fields = {"name": "etl", "queue": "q", "generation": call.generation, "number": 1}
    refused, _ = rig.channel("write").call(
        write("consumers.record", **fields), pa.RecordBatch.from_pylist(rows, schema=SETTLEMENTS)
    )
    assert refused.error is not None
    assert refused.error.code == "invalid_request"
    assert rig.broker.consumers.close("etl", "q", call.generation, 1).settled == {"completed": 2}


def test_a_write_and_a_reading_go_on_through_a_server_that_is_killed(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"payload": [b"%07d" % n * 200 for n in range(8000)]})
    with (
        run_server(tmp_path / "data", settings={"durability": "os"}) as server,
        fairlead.connect(server.address, retry_for="60s") as client,
    ):
        client.create_queue("q")
        client.staging.stage_batch("t", "a", "q", rows.slice(0, 4000))
        server.restart(kill=True)
        client.staging.stage_batch("t", "b", "q", rows.slice(4000))
        assert client.staging.publish("t", "q", ["a", "b"]).count == 8000
        generation = client.consumers.register("etl", "q").generation
        assert client.consumers.claim("etl", "q", generation, 1, limit=8000).count == 8000
        reading = client.consumers.read_batches("etl", "q", generation, 1)
        found = next(reading).column("payload").to_pylist()
        server.restart(kill=True)
        found += [payload for batch in reading for payload in batch.column("payload").to_pylist()]
        assert found == rows.column("payload").to_pylist()
        assert client.consumers.close("etl", "q", generation, 1).settled == {"completed": 8000}
        server.restart(kill=True)
        assert client.staging.publish("t", "q", ["a", "b"]).outcome == "already"
        assert client.consumers.show("etl", "q").last_closed == 1
        stats = client.stats("q")
        assert (stats.ready, stats.leased) == (0, 0)
        assert server.stop() == 0
