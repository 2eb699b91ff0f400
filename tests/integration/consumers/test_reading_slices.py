"""Readers of slices side by side: what one has worked out the others use, and it makes no difference."""

from __future__ import annotations

import random

import pytest

from fairlead import NewMessage
from fairlead.decide.slices import slice_of
from fairlead.testing.sizes import size
from tests.integration.world import World

COUNT = 300


@pytest.fixture
def generation(world: World, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(size("read_page_messages"), 7)
    world.broker.enqueue_many(
        "q", [NewMessage(b"%d" % n, stream=f"s{n % 40}" if n % 3 else None) for n in range(COUNT)]
    )
    generation = world.broker.consumers.register("etl", "q").generation
    assert world.broker.consumers.claim("etl", "q", generation, 1).count == COUNT
    return generation


@pytest.mark.parametrize("slices", [1, 2, 3, 50, 256, 257, 1000])
def test_slices_read_in_any_order_and_side_by_side_are_what_the_rule_says(
    world: World, generation: int, slices: int
) -> None:
    expected: dict[int, list[bytes]] = {at: [] for at in range(slices)}
    for place, delivery in enumerate(world.broker.consumers.read("etl", "q", generation, 1)):
        expected[slice_of(place, COUNT, delivery.stream or "", slices)].append(delivery.raw_id)
    chance = random.Random(slices)
    wanted = [chance.randrange(slices) for _ in range(10)]
    readers = {
        (turn, at): world.broker.consumers.read_pages("etl", "q", generation, 1, slice=at, slices=slices)
        for turn, at in enumerate(wanted)
    }
    found: dict[tuple[int, int], list[bytes]] = {reader: [] for reader in readers}
    while readers:
        reader = chance.choice([*readers])
        page = next(readers[reader], None)
        if page is None:
            del readers[reader]
        else:
            assert 0 < len(page) <= 7
            found[reader] += [delivery.raw_id for delivery in page]
    assert all(ids == expected[at] for (_, at), ids in found.items())


def test_a_claim_cut_otherwise_and_the_next_claim_are_worked_out_anew(world: World, generation: int) -> None:
    consumers = world.broker.consumers
    for slices in (2, 5, 2):
        parts = [
            [
                delivery.raw_id
                for delivery in consumers.read("etl", "q", generation, 1, slice=at, slices=slices)
            ]
            for at in range(slices)
        ]
        assert sum(map(len, parts)) == COUNT
    first = {raw_id for part in parts for raw_id in part}
    consumers.close("etl", "q", generation, 1)
    world.broker.enqueue_many("q", [NewMessage(b"x")] * 20)
    assert consumers.claim("etl", "q", generation, 2).count == 20
    parts = [
        [delivery.raw_id for delivery in consumers.read("etl", "q", generation, 2, slice=at, slices=2)]
        for at in range(2)
    ]
    assert sum(map(len, parts)) == 20
    assert first.isdisjoint(raw_id for part in parts for raw_id in part)


def test_a_page_ends_with_the_message_that_fills_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("read_page_bytes"), 100)
    world.broker.enqueue_many(
        "q", [NewMessage(bytes(size), stream="one") for size in (200, 60, 60, 10, 100, 5)]
    )
    generation = world.broker.consumers.register("etl", "q").generation
    world.broker.consumers.claim("etl", "q", generation, 1)
    for slices in (1, 2):
        pages = [
            [*map(len, [delivery.payload for delivery in page])]
            for at in range(slices)
            for page in world.broker.consumers.read_pages("etl", "q", generation, 1, slice=at, slices=slices)
        ]
        assert pages == [[200], [60, 60], [10, 100], [5]]
