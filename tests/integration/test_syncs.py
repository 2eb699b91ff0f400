"""What waits for the disk and what does not, with `durability="fsync"`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead import Broker, Complete, Delivery, Extend, Fail, NewMessage, Release, Start
from fairlead.model.settle import Settlement
from fairlead.testing import ManualClock, Storage
from tests.turns import new_place, turn


@pytest.fixture
def store() -> Storage:
    return Storage()


@pytest.fixture
def broker(store: Storage) -> Broker:
    broker = store.open_broker(clock=ManualClock(), durability="fsync")
    broker.create_queue("q")
    broker.enqueue_many("q", [NewMessage(b"1"), NewMessage(b"2")])
    return broker


Said = Callable[[Delivery], Settlement]


@pytest.mark.parametrize("by_request", [False, True])
@pytest.mark.parametrize(
    ("said", "syncs"),
    [
        (Start, 0),
        (lambda d: Extend(d, "1m"), 0),
        (lambda d: Extend(d, "1m", progress=1), 1),
        (lambda d: Extend(d, carry=b"x"), 1),
        (Complete, 1),
        (Fail, 1),
        (Release, 1),
    ],
    ids=["start", "extend", "progress", "carry", "complete", "fail", "release"],
)
def test_only_what_a_power_cut_must_not_undo_waits_for_the_disk(
    broker: Broker, store: Storage, said: Said, syncs: int, by_request: bool
) -> None:
    first, second = broker.claim("q", limit=2, started=False)
    place = new_place(broker)
    before = store.sync_calls
    if by_request:
        (result,) = turn(broker, "", settle=[said(first)], place=place).settled
    else:
        (result,) = broker.settle([said(first)])
    assert result.ok
    assert store.sync_calls - before == syncs
    broker.settle([Start(second), said(first), Complete(second)])
    assert store.sync_calls - before == syncs + 1


def test_a_start_that_comes_with_messages_waits_for_them(broker: Broker, store: Storage) -> None:
    (delivery,) = broker.claim("q", started=False)
    before = store.sync_calls
    turn(broker, "", settle=[Start(delivery)], enqueue={"q": [NewMessage(b"3")]})
    assert store.sync_calls == before + 1


def test_a_claim_does_not_wait_for_the_disk(broker: Broker, store: Storage) -> None:
    before = store.sync_calls
    assert broker.claim("q", limit=2)
    assert store.sync_calls == before
