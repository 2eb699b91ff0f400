"""Answers that would be larger than a batch, or than memory: they end earlier, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import Broker, Complete, NewMessage
from fairlead.model.limits import MAX_ANSWER_BYTES
from fairlead.testing import ManualClock, open_in_memory

LARGE = bytes(1 << 20)
MANY = 400
#: A claim picks a few at a time, and may be too much by those.
SOME_MORE = 64 * len(LARGE)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with open_in_memory(clock=ManualClock()) as made:
        for queue in ("q", "other"):
            made.create_queue(queue)
        yield made


def fill(broker: Broker, queue: str, stream: str | None = None) -> None:
    for _ in range(MANY // 50):
        broker.enqueue_many(queue, [NewMessage(LARGE, stream=stream)] * 50)


@pytest.mark.parametrize("max_per_stream", [1, 1000])
@pytest.mark.parametrize("stream", [None, "s"])
def test_a_claim_of_large_messages_ends_early_and_the_next_goes_on(
    broker: Broker, stream: str | None, max_per_stream: int
) -> None:
    fill(broker, "q", stream)
    claimed = 0
    while deliveries := broker.claim("q", limit=100_000, max_per_stream=max_per_stream):
        assert sum(len(delivery.payload) for delivery in deliveries) < MAX_ANSWER_BYTES + SOME_MORE
        broker.settle([Complete(delivery) for delivery in deliveries])
        claimed += len(deliveries)
    assert claimed == MANY


def test_a_claim_of_several_queues_ends_early_as_a_whole(broker: Broker) -> None:
    fill(broker, "q")
    fill(broker, "other")
    deliveries = broker.claim(["q", "other"], limit=100_000)
    assert 0 < sum(len(delivery.payload) for delivery in deliveries) < MAX_ANSWER_BYTES + SOME_MORE


def test_a_drain_removes_no_more_than_it_gives_back(broker: Broker) -> None:
    fill(broker, "q")
    drained = broker.drain("q", limit=10_000)
    assert 0 < sum(len(info.payload) for info in drained) <= MAX_ANSWER_BYTES
    assert broker.stats("q").ready == MANY - len(drained)


def test_a_peek_shows_what_fits_and_goes_on_behind_it(broker: Broker) -> None:
    fill(broker, "q")
    seen: list[str] = []
    while page := broker.peek("q", limit=10_000, after=seen[-1] if seen else None):
        assert sum(len(info.payload) for info in page) <= MAX_ANSWER_BYTES
        seen += [info.id for info in page]
    assert len(set(seen)) == len(seen) == MANY
