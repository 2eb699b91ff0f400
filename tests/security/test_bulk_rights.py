"""Durable consumers, staged writes and browsing belong to queues: what that means beyond the table of rights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fairlead
from fairlead import Fail, NewMessage, errors
from fairlead.decide.redact import Redaction
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.testing import open_in_memory, run_server
from fairlead.testing.sizes import size
from fairlead.verbs.browse import Browse
from fairlead.wire.schemas import BROWSED
from tests.integration.world import Background, wait_until
from tests.security.scene import Scene, refusal
from tests.security.test_changed_while_open import ENDS

SECRET = "4111-canary-1111"


@pytest.fixture
def queues(scene: Scene) -> Scene:
    for queue in ("ours/q", "theirs/q"):
        scene.broker.create_queue(queue, retry="none")
    return scene


def test_a_consumer_is_found_by_every_key_of_its_queue_and_so_outlives_the_one_that_made_it(
    queues: Scene,
) -> None:
    old, new = queues.key("consume:ours/*"), queues.with_grants("consume:ours/q")
    queues.broker.enqueue("ours/q", b"1")
    generation = queues.as_key(old).consumers.register("etl", "ours/q").generation
    assert queues.as_key(old).consumers.claim("etl", "ours/q", generation, 1).count == 1
    queues.broker.keys.revoke(old.info.id)
    assert new.consumers.claim("etl", "ours/q", generation, 1).count == 1
    assert [delivery.payload for delivery in new.consumers.read("etl", "ours/q", generation, 1)] == [b"1"]


def test_a_published_write_stays_published_for_another_key(queues: Scene) -> None:
    old, new = queues.with_grants("produce:ours/*"), queues.with_grants("produce:ours/*")
    old.staging.stage("daily", "c", "ours/q", [NewMessage(b"1")])
    old.staging.publish("daily", "ours/q", ["c"])
    new.staging.stage("daily", "c", "ours/q", [NewMessage(b"1")])
    assert new.staging.publish("daily", "ours/q", ["c"]).outcome == "already"
    assert queues.broker.stats("ours/q").ready == 1


def test_a_write_of_both_kinds_takes_the_right_to_each(queues: Scene) -> None:
    writer, judge = queues.with_grants("produce:ours/*"), queues.with_grants("quarantine:ours/*")
    writer.staging.stage("both", "alive", "ours/q", [NewMessage(b"1")])
    assert refusal(lambda: judge.staging.publish("both", "ours/q", [])) == "forbidden"
    judge.staging.stage("both", "dead", "ours/q", [NewMessage(b"1")], dead=("validation_failure", "bad"))
    for caller in (writer, judge):
        assert (
            refusal(lambda caller=caller: caller.staging.publish("both", "ours/q", ["alive", "dead"]))
            == "forbidden"
        )  # type: ignore[misc]
        assert refusal(lambda caller=caller: caller.staging.discard("both", "ours/q")) == "forbidden"  # type: ignore[misc]
    both = queues.with_grants("produce:ours/*", "quarantine:ours/*")
    assert both.staging.publish("both", "ours/q", ["alive", "dead"]).count == 2
    assert [caller.staging.publish("both", "ours/q", []).outcome for caller in (writer, judge)] == [
        "already"
    ] * 2


def test_dead_letters_are_published_with_the_right_to_quarantine_alone(queues: Scene) -> None:
    judge = queues.with_grants("quarantine:ours/*")
    assert refusal(lambda: judge.staging.stage("t", "c", "ours/q", [NewMessage(b"1")])) == "forbidden"
    judge.staging.stage("t", "c", "ours/q", [NewMessage(b"1")], dead=("validation_failure", "bad"))
    assert judge.staging.publish("t", "ours/q", ["c"]).count == 1
    assert judge.staging.publish("t", "ours/q", ["c"]).outcome == "already"
    assert queues.broker.stats("ours/q").dead == 1


def test_what_operators_do_to_consumers_and_writes_is_written_down(queues: Scene) -> None:
    admin = queues.with_grants("admin:ours/*", "consume:ours/*", "produce:ours/*")
    queues.broker.enqueue("ours/q", b"1")
    generation = admin.consumers.register("etl", "ours/q").generation
    admin.consumers.claim("etl", "ours/q", generation, 1)
    admin.consumers.release("etl", "ours/q")
    admin.consumers.drop("etl", "ours/q")
    admin.staging.stage("t", "c", "ours/q", [NewMessage(b"1")])
    admin.staging.discard("t", "ours/q")
    told = [(entry.verb, entry.queue, entry.count, entry.details) for entry in queues.broker.audit.read()]
    assert told == [
        ("staging.discard", "ours/q", 1, {"token": "t"}),
        ("consumers.drop", "ours/q", None, {"consumer": "etl"}),
        ("consumers.release", "ours/q", 1, {"consumer": "etl"}),
    ]


@pytest.mark.parametrize("how", ENDS)
def test_a_reading_ends_when_its_key_loses_the_right(
    queues: Scene, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("read_page_messages"), 500)
    end, error = ENDS[how]
    key = queues.key("consume:ours/*")
    guard = queues.as_key(key)
    queues.broker.enqueue_many("ours/q", [NewMessage(b"1")] * 2500)
    generation = guard.consumers.register("etl", "ours/q").generation
    guard.consumers.claim("etl", "ours/q", generation, 1)
    reading = guard.consumers.read("etl", "ours/q", generation, 1)
    next(reading)
    end(queues.broker.keys, key.info.id)
    read = []
    with pytest.raises(error):
        read.extend(reading)
    assert len(read) < 1000


@pytest.mark.parametrize("how", ENDS)
def test_a_numbered_claim_that_waited_while_its_key_lost_the_right_is_not_told_of(
    queues: Scene, how: str
) -> None:
    end, error = ENDS[how]
    key = queues.key("consume:ours/*")
    guard = queues.as_key(key)
    generation = guard.consumers.register("etl", "ours/q").generation
    claim = Background(lambda: guard.consumers.claim("etl", "ours/q", generation, 1, wait="1h"))
    wait_until(lambda: queues.broker.stats("ours/q").consumers == 1)
    end(queues.broker.keys, key.info.id)
    queues.broker.enqueue("ours/q", b"1")
    with pytest.raises(error):
        claim.result()
    other = queues.with_grants("consume:ours/*")
    assert other.consumers.claim("etl", "ours/q", generation, 1).count == 1


# Browsing shows what people may see


def browsed(guard: AdmittedCaller, **options: Any) -> list[Any]:
    return [info for page in guard.browse_pages(Browse("q", **options)) for info in page]


WAYS: dict[str, Callable[..., list[Any]]] = {
    "a page": lambda guard, **options: guard.browse("q", **options),
    "all pages": browsed,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_redacted_is_not_browsed(way: str) -> None:
    with open_in_memory() as broker:
        broker.create_queue("q", retry="none")
        broker.enqueue("q", json.dumps({"card": SECRET}).encode(), headers={"authorization": SECRET})
        broker.settle([Fail(broker.claim("q")[0], error=f"card {SECRET} declined")])
        guard = Layers(broker, Redaction(("authorization",), ("$.card",))).admit(None, "a test")
        (info,) = WAYS[way](guard, view="dead")
        assert SECRET not in f"{info!r} {info.payload!r} {info.headers!r}"
        assert "payload $.card" in info.hidden


def test_whoever_browses_all_is_written_down_once() -> None:
    with open_in_memory() as broker:
        broker.create_queue("q")
        broker.enqueue_many("q", [NewMessage(b"1")] * 30_000)
        guard = Layers(broker).admit(None, "a test")
        assert len(browsed(guard)) == 30_000
        assert [(entry.verb, entry.queue) for entry in broker.audit.read()] == [("browse", "q")]


def test_batches_of_what_one_may_not_read_say_so_in_a_column(tmp_path: Any) -> None:
    with run_server(tmp_path / "data", settings={"durability": "os", "auth.mode": "keys"}) as server:
        root = fairlead.connect(
            server.address, api_key=(tmp_path / "data" / BOOTSTRAP_FILE).read_text().strip()
        )
        root.create_queue("q")
        root.enqueue("q", b"secret", headers={"h": "secret"})
        keys = {
            grants: root.keys.create("k", grants.split()).secret
            for grants in ("redrive:q", "redrive:q read-payload:q", "redrive:other")
        }
        found = {}
        for grants, secret in keys.items():
            with fairlead.connect(server.address, api_key=secret) as client:
                found[grants] = outcome_of(
                    lambda client=client: pa.Table.from_batches(
                        client.browse_batches("q"), BROWSED
                    ).to_pylist()
                )  # type: ignore[misc]
        root.close()
    assert found["redrive:other"] == "forbidden"
    assert [(row["payload"], row["hidden"]) for row in found["redrive:q"]] == [
        (b"", ["payload", "headers", "carry"])
    ]
    assert [(row["payload"], row["hidden"]) for row in found["redrive:q read-payload:q"]] == [(b"secret", [])]


def outcome_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except errors.FairleadError as refused:
        return refused.code
