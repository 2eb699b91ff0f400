"""What simulated lives have shown, each cut down to the few steps that matter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead import Broker, Fail, NewMessage, Release
from fairlead.errors import StoreFull
from fairlead.hooks import FailureDecision, OnFailureCall
from fairlead.testing import ManualClock, Storage, laws
from fairlead.testing.engine import engine_of, replace_hooks, stored_rows
from fairlead.testing.sizes import size
from tests.simulation.random_hooks import RandomHooks


@pytest.fixture(params=["memory", "rocks"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    store = Storage(None if request.param == "memory" else tmp_path / "data")
    with store.open_broker(clock=ManualClock(), durability="os") as broker:
        yield broker
        assert laws(store) == []


def fill(broker: Broker, stream: str, count: int) -> list[str]:
    return broker.enqueue_many(
        "q", [NewMessage(f"{stream}{number}".encode(), stream=stream) for number in range(count)]
    )


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_a_purge_that_ends_a_step_with_a_stream_begins_the_next_stream_at_its_first_message(
    broker: Broker, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("operation_step_messages"), 3)
    broker.create_queue("q")
    fill(broker, order[0], 3)
    fill(broker, order[1], 3)
    assert broker.purge("q") == 6
    assert broker.stats("q").ready == 0


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_deleting_a_queue_in_several_steps_leaves_no_message_of_its_streams(
    broker: Broker, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("operation_step_messages"), 3)
    broker.create_queue("q")
    before = stored_rows(broker).keys()
    fill(broker, order[0], 3)
    fill(broker, order[1], 3)
    broker.delete_queue("q")
    left = {row for row in stored_rows(broker).keys() - before if not row.startswith("meta ")}
    assert left == set()


def test_a_hook_is_asked_about_the_first_of_two_failures_of_one_delivery(broker: Broker) -> None:
    class Strict(RandomHooks):
        def on_failure(
            self, queue_id: int, queue: str, failures: Sequence[OnFailureCall]
        ) -> list[FailureDecision]:
            return [FailureDecision("ran", "dlq" if call.error == "second" else "retry") for call in failures]

    replace_hooks(broker, Strict(random.Random(0)))
    broker.create_queue("q", on_failure="-- asked of the stand-in")
    broker.enqueue("q", b"")
    (d,) = broker.claim("q")
    first, second = broker.settle([Fail(d, error="first"), Fail(d, error="second")])
    assert (first.outcome, second.outcome) == ("retry", "lost_lease")


def test_a_message_of_a_stream_still_ends_in_time_after_it_was_given_back(broker: Broker) -> None:
    broker.create_queue("q")
    broker.enqueue("q", b"", stream="A", ttl="60s")
    (d,) = broker.claim("q")
    broker.settle([Release(d)])
    broker.clock.advance(seconds=61)  # type: ignore[attr-defined]
    assert broker.stats("q").ready == 0


def test_a_run_does_not_pass_a_message_that_came_to_wait_after_the_stream_was_released(
    broker: Broker,
) -> None:
    broker.create_queue("q", retry={"policy": "fixed", "cooldown": "1h"}, visibility_timeout="2h")
    ids = fill(broker, "A", 5)
    broker.hold("q", ids[:1])
    broker.release_stream("q", "A")
    failed, let_by, given_back = broker.claim("q", limit=3, max_per_stream=3)
    broker.settle([Fail(failed), Release(let_by), Release(given_back, keep_order=True)])
    assert [d.id for d in broker.claim("q", limit=5, max_per_stream=5)] == [let_by.id]


def test_a_step_that_found_the_disk_full_is_done_again_from_where_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(size("operation_step_messages"), 3)
    clock, store = ManualClock(), Storage()
    broker = store.open_broker(clock=clock, durability="os")
    broker.create_queue("q")
    broker.enqueue_many("q", [NewMessage(b"")] * 9)
    store.arm(2, "full")
    with pytest.raises(StoreFull):
        broker.purge("q")
    store.arm(1, "full")
    with pytest.raises(StoreFull):
        clock.advance(seconds=1)
    clock.advance(seconds=1)
    assert broker.stats("q").ready == 0


@pytest.mark.parametrize("turn", [0, 1])
def test_a_claim_over_several_queues_leaves_nothing_that_became_ready_during_the_claim(
    turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Storage()
    before = store.open_broker(clock=ManualClock(), durability="os")
    for name in ("a", "b"):
        before.create_queue(name, visibility_timeout="1s")
    before.enqueue_many("a", [NewMessage(b"x")] * 3)
    assert all(before.claim("a", started=False) for _ in range(3))
    # Another boot of the machine, ten seconds later: all leases have run out, and nobody has looked yet.
    after = store.open_broker(clock=ManualClock(1_700_000_010_000), durability="os")
    engine_of(after).memory.claim_turn = turn
    monkeypatch.setattr(size("timer_step_messages"), 1)
    assert after.claim(["a", "b"], limit=30)
    assert after.stats("a").ready == 0
