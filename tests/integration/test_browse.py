"""Browsing: all of a queue in order of ids, without claiming, each message once however it moves meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Complete, Fail, NewMessage, Release
from fairlead.errors import InvalidRequest, QueueNotFound
from fairlead.model.limits import MAX_ANSWER_BYTES
from fairlead.model.views import MessageInfo
from fairlead.testing.between import after_the_first_look
from fairlead.testing.sizes import read_size, size
from tests.integration.world import World


@pytest.fixture(params=["few", "many"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of a small queue are met in one step, those of a large one in several."""
    if request.param == "many":
        monkeypatch.setattr(size("browse_step_messages"), 3)


def pages(world: World, queue: str = "q", *, limit: int = 3, **options: Any) -> Iterator[list[MessageInfo]]:
    after = ""
    while page := world.broker.browse(queue, limit=limit, after=after, **options):
        assert len(page) <= limit
        yield page
        after = page[-1].id


def everything(world: World, queue: str = "q", **options: Any) -> list[MessageInfo]:
    return [info for page in pages(world, queue, **options) for info in page]


def fill(world: World) -> list[str]:
    """One in every place, beside messages of another queue."""
    world.broker.create_queue("other")
    world.broker.update_queue("q", retain_completed="1h", retry={"policy": "fixed", "cooldown": "1m"})
    ids = []
    for kind in (
        "ready",
        "done",
        "leased",
        "failed",
        "delayed",
        "stream",
        "stream",
        "stream",
        "held",
        "expiring",
    ):
        world.fill("other", count=2)
        options: dict[str, Any] = {
            "delayed": {"delay": "5m"},
            "stream": {"stream": "s"},
            "expiring": {"ttl": "1h"},
        }.get(kind, {})
        ids.append(
            world.broker.enqueue(
                "q", kind.encode(), headers={"kind": kind}, fairness_key=kind, weight=2, **options
            )
        )
    by_kind = {delivery.payload: delivery for delivery in world.broker.claim("q", limit=100)}
    world.broker.settle([Complete(by_kind.pop(b"done")), Fail(by_kind.pop(b"failed"), error="oops")])
    world.broker.hold("q", [by_kind.pop(b"held").id])
    keep = {b"leased"}
    world.broker.settle([Release(delivery) for payload, delivery in by_kind.items() if payload not in keep])
    return ids


def test_all_of_a_queue_is_seen_in_order_of_ids_with_where_it_is(world: World) -> None:
    ids = fill(world)
    infos = everything(world)
    assert [info.id for info in infos] == ids
    assert [info.where for info in infos] == [
        "ready",
        "done",
        "leased",
        "waiting",
        "waiting",
        "ready",
        "ready",
        "ready",
        "waiting",
        "ready",
    ]
    assert {info.queue for info in infos} == {"q"}


def test_what_is_shown_of_a_message_is_what_find_shows(world: World) -> None:
    fill(world)
    for _ in range(2):
        world.broker.enqueue(
            "q",
            b"fresh",
            headers={"h": "1"},
            fairness_key="f",
            weight=7,
            throttle_keys=["t"],
            stream="z",
            dedup_key="d",
            ttl="1h",
        )
        world.broker.enqueue("q", b"fresh", delay="1h", ttl="2h")
        world.broker.enqueue("q", b"fresh")
    for info in everything(world):
        assert info == world.broker.find(info.id)


def test_dead_letters_are_a_view_of_their_own(world: World) -> None:
    world.fill("q", count=3)
    doomed = world.broker.claim("q", limit=2)
    world.broker.settle([Fail(delivery, error="bad", dead=True) for delivery in doomed])
    world.broker.quarantine("q", [NewMessage(b"stillborn")], reason="validation_failure", error="never good")
    letters = everything(world, view="dead")
    assert [(letter.payload, letter.failures[-1].error) for letter in letters] == [
        (b"x", "bad"),
        (b"x", "bad"),
        (b"stillborn", "never good"),
    ]
    assert letters == everything(world, "q.dlq") == everything(world, "q.dlq", view="dead")
    assert {(letter.queue, letter.source) for letter in letters} == {("q.dlq", "q")}
    assert len(everything(world)) == 1
    for letter in letters:
        assert letter == world.broker.find(letter.id)


def test_a_message_that_stays_is_seen_once_whatever_place_it_moves_to(world: World) -> None:
    """Between any two pages everything is moved: claimed, failed into waiting, made due with a new place,
    released, held.
    """
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "1s"})
    stay = world.fill("q", count=12) + [world.broker.enqueue("q", b"s", stream=f"s{n % 2}") for n in range(6)]
    turn = itertools.count()
    seen = []
    for page in pages(world, limit=2):
        seen += [info.id for info in page]
        moved = world.broker.claim("q", limit=100, max_per_stream=100)
        match next(turn) % 3:
            case 0:
                world.broker.settle([Fail(delivery, error="again") for delivery in moved])
            case 1:
                world.clock.advance(ms=1_000)
                world.broker.goodbye("")
            case _:
                world.broker.hold("q", [delivery.id for delivery in moved][:3])
        world.fill("q", count=1, payload=b"late")
        world.clock.advance(ms=700)
        if next(turn) > 60:
            break
    assert [id for id in seen if id in set(stay)] == stay
    assert len(set(seen)) == len(seen)


def test_messages_that_go_or_come_meanwhile_do_no_harm(world: World) -> None:
    ids = world.fill("q", count=6)
    road = pages(world, limit=2)
    assert [info.id for info in next(road)] == ids[:2]
    world.broker.drop("q", [ids[1], ids[3]])
    late = world.fill("q", count=1)
    assert [info.id for page in road for info in page] == [ids[2], ids[4], ids[5], *late]


def test_bounds_cut_the_ids_with_the_low_one_in_and_the_high_one_out(world: World) -> None:
    ids = world.fill("q", count=7)
    assert [info.id for info in everything(world, low=ids[2], high=ids[5])] == ids[2:5]
    assert [info.id for info in everything(world, high=ids[3])] == ids[:3]
    assert [info.id for info in everything(world, low=ids[6].upper())] == ids[6:]
    assert [info.id for info in world.broker.browse("q", low=ids[1], after=ids[4])] == ids[5:]
    assert [info.id for info in world.broker.browse("q", low=ids[4], after=ids[1])] == ids[4:]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
def test_splits_leave_nothing_out_and_overlap_nowhere(world: World, n: int) -> None:
    ids = fill(world) + world.fill("q", count=20)
    splits = world.broker.browse_splits("q", n=n)
    assert (splits[0][0], splits[-1][1]) == ("", "")
    assert [high for _, high in splits[:-1]] == [low for low, _ in splits[1:]]
    parts = [[info.id for info in everything(world, low=low, high=high)] for low, high in splits]
    assert [id for part in parts for id in part] == ids
    assert len(parts) == min(n, len(ids))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_splits_of_an_empty_queue_or_of_no_dead_letters_are_everything(world: World) -> None:
    assert world.broker.browse_splits("q", n=8) == [("", "")]
    world.fill("q", count=3)
    assert world.broker.browse_splits("q", "dead", 8) == [("", "")]
    assert world.broker.browse("q", view="dead") == []


def test_a_message_that_comes_after_the_splits_were_made_is_in_the_last(world: World) -> None:
    world.fill("q", count=4)
    splits = world.broker.browse_splits("q", n=2)
    (late,) = world.fill("q", count=1)
    assert [info.id for info in everything(world, low=splits[-1][0], high=splits[-1][1])][-1] == late


def test_a_page_ends_at_so_many_bytes_and_has_always_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_size("browse_page_bytes") < MAX_ANSWER_BYTES
    monkeypatch.setattr(size("browse_page_bytes"), 2500)
    ids = world.fill("q", count=150, payload=b"x" * 1000)
    sizes = [len(page) for page in pages(world, limit=1000)]
    assert max(sizes) < 150
    assert [info.id for info in everything(world, limit=1000)] == ids


def test_browsing_changes_nothing(world: World) -> None:
    fill(world)
    before = world.store.last_commit
    everything(world)
    world.broker.browse_splits("q", n=3)
    assert world.store.last_commit == before


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"view": "ready"}, "view"),
        ({"view": None}, "view"),
        ({"low": "abcd"}, "low"),
        ({"high": 5}, "high"),
        ({"after": None}, "after"),
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
        ({"limit": True}, "limit"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_by_name(
    world: World, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        world.broker.browse("q", **options)
    assert refused.value.field == field


def test_a_queue_that_is_not_there_is_told(world: World) -> None:
    with pytest.raises(QueueNotFound):
        world.broker.browse("nowhere")
    with pytest.raises(QueueNotFound):
        world.broker.browse_splits("nowhere")
    with pytest.raises(InvalidRequest):
        world.broker.browse_splits("q", n=0)


def test_a_page_whose_messages_have_all_died_meanwhile_is_not_the_end(world: World) -> None:
    ids = world.broker.enqueue_many("q", [NewMessage(b"x", fairness_key=f"{n}") for n in range(6)])
    with after_the_first_look(world.broker, lambda: world.broker.bury("q", ids[:3])):
        found = everything(world)
    assert [info.id for info in found][-3:] == ids[3:]


def test_large_messages_are_read_one_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("browse_page_bytes"), 100)
    world.broker.enqueue_many("q", [NewMessage(b"x" * 150)] * 4)
    assert [len(page) for page in pages(world)] == [1, 1, 1, 1]
