"""Numbered claims, staged writes and browsing through a client, in Python values and in record batches."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from fairlead import Client, Complete, Extend, Fail, FailureReason, NewMessage, Release, Start, errors
from fairlead.model.consumer import SliceBegun
from fairlead.model.limits import MAX_CARRY_BYTES
from fairlead.testing.sizes import size
from fairlead.wire.schemas import BROWSED, DELIVERIES
from tests.client.lossy import LossyRelay
from tests.client.scene import PATIENCE_S, Scene, until


def fill(client: Client, count: int, queue: str = "q") -> list[str]:
    return client.enqueue_many(
        queue, [NewMessage(b"%d" % n, {"n": str(n)}, fairness_key=f"k{n % 3}") for n in range(count)]
    )


def taken(client: Client, count: int = 100) -> int:
    """A consumer `etl` with claim 1 in hand; its generation."""
    generation = client.consumers.register("etl", "q").generation
    assert client.consumers.claim("etl", "q", generation, 1, limit=count).count
    return generation


def test_a_claim_is_read_as_often_as_one_likes_and_closed_once(client: Client) -> None:
    ids = fill(client, 10)
    generation = taken(client)
    first, again = [
        [delivery.id for delivery in client.consumers.read("etl", "q", generation, 1)] for _ in range(2)
    ]
    assert first == again
    assert sorted(first) == sorted(ids)
    assert [client.consumers.close("etl", "q", generation, 1).settled for _ in range(2)] == [
        {"completed": 10}
    ] * 2
    assert client.stats("q").leased == 0
    with pytest.raises(errors.ClaimClosed):
        list(client.consumers.read("etl", "q", generation, 1))


def test_slices_are_parts_of_a_claim_in_batches_with_every_column(client: Client) -> None:
    ids = fill(client, 30)
    generation = taken(client)
    slices = [
        [*client.consumers.read_batches("etl", "q", generation, 1, slice=part, slices=3)] for part in range(3)
    ]
    assert all(batch.schema.equals(DELIVERIES) for batches in slices for batch in batches)
    found = [pa.Table.from_batches(batches).column("payload").to_pylist() for batches in slices]
    assert sorted(payload for part in found for payload in part) == sorted(b"%d" % n for n in range(len(ids)))
    assert all(found)
    (batch,) = client.consumers.read_batches("etl", "q", generation, 1, payloads=False)
    assert batch.column("payload").null_count == batch.num_rows == 30
    assert batch.column("headers").null_count == 0


def test_outcomes_are_recorded_in_values_and_in_batches_and_count_when_chosen(client: Client) -> None:
    fill(client, 6)
    generation = taken(client)
    deliveries = [*client.consumers.read("etl", "q", generation, 1)]
    client.consumers.record("etl", "q", generation, 1, [Release(deliveries[0]), Complete(deliveries[1])])
    (batch,) = client.consumers.read_batches("etl", "q", generation, 1)
    two = batch.slice(2, 2)
    said = pa.RecordBatch.from_pydict(
        {"action": [1, 1], "id": two.column("id"), "lease": two.column("lease"), "dead": [True, True]}
    )
    client.consumers.record_batch("etl", "q", generation, 1, said, part="winner")
    client.consumers.record("etl", "q", generation, 1, [Fail(deliveries[4], dead=True)], part="loser")
    client.consumers.choose("etl", "q", generation, 1, ["winner"])
    assert client.consumers.close("etl", "q", generation, 1).settled == {
        "released": 1,
        "dead": 2,
        "completed": 3,
    }


def test_an_item_that_cannot_be_sent_is_refused_and_nothing_is_recorded(client: Client) -> None:
    fill(client, 2)
    generation = taken(client)
    first, second = client.consumers.read("etl", "q", generation, 1)
    with pytest.raises(errors.InvalidRequest, match="progress"):
        client.consumers.record("etl", "q", generation, 1, [Release(first), Complete(second, progress=-1)])
    with pytest.raises(errors.InvalidRequest, match="items"):
        client.consumers.record("etl", "q", generation, 1, "release them")  # type: ignore[arg-type]
    assert client.consumers.close("etl", "q", generation, 1).settled == {"completed": 2}


def test_whoever_registers_later_fences_off_the_other(client: Client) -> None:
    fill(client, 1)
    before = taken(client)
    after = client.consumers.register("etl", "q").generation
    with pytest.raises(errors.StaleConsumer) as stale:
        client.consumers.heartbeat("etl", "q", before)
    assert stale.value.current == after
    assert client.consumers.heartbeat("etl", "q", after).open == 1
    assert client.consumers.show("etl", "q").messages == 1
    assert [info.name for info in client.consumers.list()] == ["etl"]


def test_a_released_claim_says_so_and_a_dropped_consumer_is_gone(client: Client) -> None:
    fill(client, 3)
    generation = taken(client)
    assert client.consumers.release("etl", "q") == 3
    assert client.stats("q").ready == 3
    with pytest.raises(errors.ClaimReleased):
        list(client.consumers.read_batches("etl", "q", generation, 1))
    client.consumers.drop("etl", "q")
    with pytest.raises(errors.ConsumerNotFound):
        client.consumers.show("etl", "q")


def test_a_claim_is_worked_on_message_by_message(client: Client) -> None:
    fill(client, 5)
    generation = client.consumers.register("etl", "q", default_outcome="release").generation
    assert client.consumers.show("etl", "q").default_outcome == "release"
    client.consumers.claim("etl", "q", generation, 1)
    assert client.consumers.begin_slice("etl", "q", generation, 1, slice=0, slices=1) == SliceBegun(
        again=False, failed=0, turn=1
    )
    a, b, c, *_ = client.consumers.read("etl", "q", generation, 1, unsettled=True)
    client.consumers.record(
        "etl",
        "q",
        generation,
        1,
        [Start(a), Start(b), Extend(b, progress=4, carry=b"so far"), Start(c), Complete(c)],
    )
    assert client.consumers.begin_slice("etl", "q", generation, 1) == SliceBegun(again=True, failed=2, turn=2)
    (batch,) = client.consumers.read_batches("etl", "q", generation, 1, unsettled=True)
    assert batch.num_rows == 2
    kept = next(one for one in client.consumers.read("etl", "q", generation, 1) if one.id == b.id)
    assert (int(kept.progress), kept.carry) == (4, b"so far")
    for wrong in ([Extend(a, "30s")], [Extend(a, carry=b"x" * (MAX_CARRY_BYTES + 1))]):
        with pytest.raises(errors.InvalidRequest):
            client.consumers.record("etl", "q", generation, 1, wrong)
    assert client.consumers.close("etl", "q", generation, 1).settled == {
        "completed": 1,
        "retry": 2,
        "released": 2,
    }
    other = client.consumers.register("audit", "q").generation
    client.consumers.claim("audit", "q", other, 1)
    with pytest.raises(errors.InvalidRequest, match="default_outcome"):
        list(client.consumers.read("audit", "q", other, 1, unsettled=True))


def test_nothing_behind_the_ceiling_is_taken(client: Client) -> None:
    fill(client, 2)
    generation = client.consumers.register("etl", "q").generation
    ceiling = client.consumers.ceiling("etl", "q", generation)
    fill(client, 3)
    assert client.consumers.claim("etl", "q", generation, 1, up_to=ceiling).count == 2


def test_a_claim_waits_for_the_first_message(scene: Scene) -> None:
    client, other = scene.client(), scene.client()
    generation = client.consumers.register("etl", "q").generation
    assert client.consumers.claim("etl", "q", generation, 1).count == 0
    claiming = ThreadPoolExecutor(1).submit(client.consumers.claim, "etl", "q", generation, 1, wait="60s")
    until(lambda: scene.broker.stats("q").consumers, "a claim that waits")
    fill(other, 1)
    assert claiming.result(PATIENCE_S).count == 1


def test_what_is_staged_is_seen_once_it_is_published(client: Client) -> None:
    staged = client.staging.stage("t", "a", "q", [NewMessage(b"1"), NewMessage(b"2", stream="s")])
    assert (staged.count, staged.bytes, staged.refused) == (2, 2, [])
    client.staging.stage_batch(
        "t", "b", "q", pa.RecordBatch.from_pydict({"payload": pa.array([b"3"], pa.large_binary())})
    )
    client.staging.stage("t", "never", "q", [NewMessage(b"4")])
    assert client.stats("q").ready == 0
    assert client.staging.publish("t", "q", ["b", "a"]).outcome == "published"
    assert client.staging.publish("t", "q", ["b", "a"]).outcome == "already"
    assert sorted(info.payload for info in client.peek("q")) == [b"1", b"2", b"3"]
    assert [(write.token, write.published, write.messages) for write in client.staging.list()] == [
        ("t", True, 3)
    ]


def test_rows_that_break_a_limit_are_named_when_they_may_be_left_out(client: Client) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"payload": [b"good", b"bad", b"good"], "stream": ["s", "x" * 600, None]}
    )
    with pytest.raises(errors.InvalidRequest, match="stream"):
        client.staging.stage_batch("t", "a", "q", batch)
    staged = client.staging.stage_batch("t", "a", "q", batch, skip_invalid=True)
    assert (staged.count, [refusal.row for refusal in staged.refused]) == (2, [1])
    by_hand = client.staging.stage(
        "t", "b", "q", [NewMessage(b"x", fairness_key=""), NewMessage(b"y")], skip_invalid=True
    )
    assert (by_hand.count, [refusal.row for refusal in by_hand.refused]) == (1, [0])


@pytest.mark.parametrize(
    "dead", [("validation_failure", "bad 1"), [("unknown", "bad 0"), ("validation_failure", "bad 1")]]
)
def test_dead_letters_are_staged_with_a_reason_for_all_or_for_each(client: Client, dead: Any) -> None:
    staged = client.staging.stage(
        "t", "a", "q", [NewMessage(b"x", fairness_key=""), NewMessage(b"y")], skip_invalid=True, dead=dead
    )
    assert (staged.count, [refusal.row for refusal in staged.refused]) == (1, [0])
    client.staging.stage_batch(
        "t", "b", "q", pa.RecordBatch.from_pydict({"payload": [b"1", b"2"]}), dead=dead
    )
    client.staging.publish("t", "q", ["a", "b"])
    found = {info.payload: (info.reason, info.failures[0].error) for info in client.browse("q", view="dead")}
    assert found[b"y"] == found[b"2"] == (FailureReason.VALIDATION_FAILURE, "bad 1")
    assert found[b"1"] == (
        (FailureReason.VALIDATION_FAILURE, "bad 1")
        if isinstance(dead, tuple)
        else (FailureReason.UNKNOWN, "bad 0")
    )


def test_a_write_that_is_discarded_cannot_be_published(client: Client) -> None:
    client.staging.stage("t", "a", "q", [NewMessage(b"1")])
    assert client.staging.discard("t", "q") == 1
    assert client.staging.discard("t", "q") == 0
    with pytest.raises(errors.StagedChunkMissing):
        client.staging.publish("t", "q", ["a"])


def test_browsing_sees_every_message_once_in_order_of_ids(client: Client) -> None:
    ids = fill(client, 25)
    client.claim("q", limit=5)
    batches = [*client.browse_batches("q")]
    assert all(batch.schema.equals(BROWSED) for batch in batches)
    table = pa.Table.from_batches(batches)
    assert table.column("payload").to_pylist() == [b"%d" % n for n in range(25)]
    assert table.column("where").to_pylist().count("leased") == 5
    page = client.browse("q", limit=10)
    assert [info.id for info in page] == sorted(ids)[:10]
    assert [info.id for info in client.browse("q", limit=10, after=page[-1].id)] == sorted(ids)[10:20]
    splits = client.browse_splits("q", "messages", 3)
    assert len(splits) == 3
    parts = [
        [batch.column("payload").to_pylist() for batch in client.browse_batches("q", low=low, high=high)]
        for low, high in splits
    ]
    assert sorted(payload for part in parts for batch in part for payload in batch) == sorted(
        b"%d" % n for n in range(25)
    )


def test_dead_letters_are_browsed_with_why_they_are_dead(client: Client) -> None:
    fill(client, 2)
    (delivery,) = client.claim("q")
    client.settle([Fail(delivery, "no such customer", "validation_failure", dead=True)])
    (batch,) = client.browse_batches("q", view="dead", payloads=False)
    (row,) = batch.to_pylist()
    assert (row["reason"], row["payload"], row["source"]) == (3, None, "q")
    assert row["dead_since"]
    (info,) = client.browse("q", view="dead")
    assert (info.id, info.failures[0].error) == (delivery.id, "no such customer")


# Trouble on the way


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("read_page_messages"), 4)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_reading_that_breaks_off_goes_on_where_it_was(scene: Scene, lost: int) -> None:
    client, transport = scene.bulk_client()
    fill(client, 14)
    generation = taken(client)
    whole = [delivery.id for delivery in client.consumers.read("etl", "q", generation, 1)]
    reading = client.consumers.read("etl", "q", generation, 1)
    found = [next(reading).id for _ in range(5)]
    transport.lose("read", lost)
    found += [delivery.id for delivery in reading]
    assert found == whole


@pytest.mark.usefixtures("small_parts")
def test_time_for_trouble_counts_anew_from_every_batch_that_comes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, transport = scene.bulk_client(retry_for_ms=100)
    fill(client, 80)
    generation = taken(client)
    turns = itertools.count()
    monkeypatch.setattr(
        transport, "take_fault", lambda verb, kind: verb == "read" and kind == "lose" and next(turns) % 2 == 1
    )
    assert len([*client.consumers.read("etl", "q", generation, 1)]) == 80
    # As many troubles as batches, each of which takes a rest of some ten milliseconds.
    assert next(turns) >= 40


@pytest.mark.usefixtures("small_parts")
def test_a_reading_of_what_is_left_that_breaks_off_goes_on_behind_what_came_though_that_is_settled_by_now(
    scene: Scene,
) -> None:
    client, transport = scene.bulk_client()
    client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(14)])
    generation = client.consumers.register("etl", "q", default_outcome="release").generation
    client.consumers.claim("etl", "q", generation, 1)
    everything = [*client.consumers.read("etl", "q", generation, 1)]
    client.consumers.record("etl", "q", generation, 1, [Complete(everything[2])])
    reading = client.consumers.read("etl", "q", generation, 1, unsettled=True)
    found = [next(reading) for _ in range(4)]
    client.consumers.record(
        "etl", "q", generation, 1, [Complete(delivery) for delivery in [*found, everything[8]]]
    )
    transport.lose("read", 2)
    found += reading
    assert [delivery.payload for delivery in found] == [
        b"%d" % n for n in (0, 1, 3, 4, 5, 6, 7, *range(9, 14))
    ]


def test_browsing_that_breaks_off_goes_on_where_it_was(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("browse_page_bytes"), 1)
    client, transport = scene.bulk_client()
    fill(client, 9)
    looking = client.browse_batches("q")
    found = next(looking).column("payload").to_pylist()
    transport.lose("browse", 2)
    found += [payload for batch in looking for payload in batch.column("payload").to_pylist()]
    assert found == [b"%d" % n for n in range(9)]


@pytest.mark.usefixtures("small_parts")
def test_a_reading_that_is_left_early_leaves_nothing_for_the_next(scene: Scene) -> None:
    client = scene.client()
    fill(client, 14)
    generation = taken(client)
    for _ in range(3):
        reading = client.consumers.read_batches("etl", "q", generation, 1)
        assert next(reading).num_rows == 4
        reading.close()  # type: ignore[attr-defined]
    assert sum(batch.num_rows for batch in client.consumers.read_batches("etl", "q", generation, 1)) == 14


@pytest.mark.usefixtures("small_parts")
def test_a_claim_that_is_released_while_it_is_read_ends_the_reading(scene: Scene) -> None:
    client, other = scene.client(), scene.client()
    fill(client, 2000)
    generation = taken(client, 2000)
    reading = client.consumers.read_batches("etl", "q", generation, 1)
    assert next(reading).num_rows == 4
    other.consumers.release("etl", "q")
    with pytest.raises(errors.ClaimReleased):
        list(reading)


def test_lost_answers_are_asked_for_again(scene: Scene) -> None:
    with LossyRelay(scene.address) as relay:
        client, transport = scene.bulk_client(address=relay.address)
        transport.lose("write")
        assert client.staging.stage("t", "a", "q", [NewMessage(b"1")]).count == 1
        relay.lose(b"FL.STAGING.PUBLISH")
        assert client.staging.publish("t", "q", ["a"]).outcome == "already"
        relay.lose(b"FL.CONSUMERS.REGISTER")
        generation = client.consumers.register("etl", "q").generation
        relay.lose(b"FL.CONSUMERS.CLAIM")
        assert client.consumers.claim("etl", "q", generation, 1).count == 1
        (delivery,) = client.consumers.read("etl", "q", generation, 1)
        relay.lose(b"FL.CONSUMERS.RECORD")
        client.consumers.record("etl", "q", generation, 1, [Fail(delivery, dead=True)])
        transport.lose("browse")
        assert [batch.num_rows for batch in client.browse_batches("q")] == [1]
        relay.lose(b"FL.CONSUMERS.CLOSE")
        assert client.consumers.close("etl", "q", generation, 1).settled == {"dead": 1}
        assert client.stats("q").dead == 1
        client.consumers.heartbeat("etl", "q", generation)


def test_a_server_that_is_gone_ends_a_reading_when_patience_is_over(scene: Scene) -> None:
    client, transport = scene.bulk_client(retry_for_ms=50)
    fill(client, 1)
    generation = taken(client)
    transport.refuse("read", 1000)
    with pytest.raises(errors.ServerUnreachable):
        list(client.consumers.read("etl", "q", generation, 1))
