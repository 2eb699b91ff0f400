"""Deliveries of the engine by column are the deliveries one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from fairlead import Delivery, Fail, NewMessage
from fairlead.engine.broker import Broker
from fairlead.engine.delivery_columns import Page
from fairlead.model.delivery_columns import columns_of
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.wire import delivery_pages
from fairlead.wire.deliveries import encode_deliveries
from fairlead.wire.delivery_pages import encode_page

PLAIN = [NewMessage(b"plain", fairness_key=f"k{n % 3}") for n in range(7)]
RICH = [
    NewMessage(
        b"r" * n,
        {"n": str(n)} if n % 2 else None,
        f"k{n % 3}",
        n + 1,
        ("slow",) if n % 3 == 0 else (),
        f"s{n % 2}" if n % 4 else None,
    )
    for n in range(9)
]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(DictionaryStore(), clock=ManualClock(), durability="os") as broker:
        broker.create_queue("q", retry={"policy": "immediate"})
        yield broker


def one_by_one(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """The same deliveries with messages in place of their chunks."""
    return [msgspec.structs.replace(one, stored=one.message) for one in deliveries]


def check_columns(deliveries: Sequence[Delivery], count: int) -> None:
    assert len(deliveries) == count
    plain = one_by_one(deliveries)
    assert encode_deliveries(deliveries).equals(encode_deliveries(plain))
    assert columns_of(deliveries).runs == columns_of(plain).runs


@pytest.mark.parametrize("messages", [PLAIN, RICH])
def test_a_claim_of_several_chunks_has_the_columns_of_its_messages(
    broker: Broker, messages: list[NewMessage]
) -> None:
    broker.enqueue_many("q", messages)
    broker.enqueue_many("q", PLAIN)
    check_columns(broker.claim("q", limit=100, max_per_stream=9), len(messages) + len(PLAIN))


def test_what_happened_to_some_messages_is_in_the_columns(broker: Broker) -> None:
    broker.enqueue_many("q", RICH)
    first = broker.claim("q", limit=3)
    broker.settle([Fail(one, error="no", progress=4) for one in first])
    again = broker.claim("q", limit=100, max_per_stream=9)
    assert any(one.attempts for one in again)
    check_columns(again, len(RICH))


def test_dead_letters_and_redriven_messages_have_their_columns(broker: Broker) -> None:
    broker.enqueue_many("q", RICH)
    broker.settle([Fail(one, dead=True) for one in broker.claim("q", limit=100, max_per_stream=9)])
    dead = broker.claim("q.dlq", limit=4)
    assert {one.source for one in dead} == {"q"}
    check_columns(dead, 4)
    broker.redrive("q.dlq")
    back = broker.claim("q", limit=100, max_per_stream=9)
    check_columns(back, len(RICH) - 4)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("waste", [0, 2, 100], ids=["row by row", "as it is", "by chunk"])
def test_pages_of_a_numbered_claim_have_the_columns_of_their_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, slices: int, waste: int
) -> None:
    monkeypatch.setattr(delivery_pages, "_MAX_WASTE", waste)
    broker.enqueue_many("q", RICH)
    broker.enqueue_many("q", PLAIN)
    broker.settle([Fail(one, error="no", progress=4) for one in broker.claim("q", limit=3)])
    broker.enqueue_many("q", PLAIN)
    generation = broker.consumers.register("c", "q").generation
    count = broker.consumers.claim("c", "q", generation, 1, limit=100).count
    found = [
        page
        for slice in range(slices)
        for page in broker.consumers.read_pages("c", "q", generation, 1, slice=slice, slices=slices)
    ]
    assert sum(map(len, found)) == count
    assert any(one.attempts for page in found for one in page)
    for page in found:
        assert isinstance(page, Page)
        check_columns(page, len(page))
        plain = one_by_one(page)
        check_columns(page[1:], len(page) - 1)
        assert encode_page(page).equals(encode_deliveries(plain))
        assert encode_page(page, payloads=False).equals(encode_deliveries(plain, payloads=False))


def test_pages_of_dead_letters_name_the_queue_that_they_come_from(broker: Broker) -> None:
    broker.enqueue_many("q", RICH)
    broker.settle([Fail(one, dead=True) for one in broker.claim("q", limit=100, max_per_stream=9)])
    generation = broker.consumers.register("c", "q.dlq").generation
    broker.consumers.claim("c", "q.dlq", generation, 1, limit=100)
    (page,) = broker.consumers.read_pages("c", "q.dlq", generation, 1)
    assert isinstance(page, Page)
    assert encode_page(page).equals(encode_deliveries(one_by_one(page)))
    assert {one.source for one in page} == {"q"}
