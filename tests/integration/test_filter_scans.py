"""Scans by filter and views: a bounded number of messages per hold of the lock, and messages are checked
again before a change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead import Broker, Complete, DeadFilter, Fail, NewMessage
from fairlead.errors import BrokerClosed, MessageNotFound, ServerStopping, StoreFull
from fairlead.model.limits import HOLD_MESSAGES
from fairlead.testing import CommitStep
from fairlead.testing.between import StepMeter, after_the_first_look, between_steps
from fairlead.testing.engine import engine_lock
from fairlead.testing.sizes import size
from fairlead.testing.steps import ignore
from tests.integration.world import World, wait_until

#: More than one hold may read, in each place a message can be in.
MANY = 11 * HOLD_MESSAGES
#: What the largest step may read.
PER_HOLD = 10 * HOLD_MESSAGES
NEVER = DeadFilter(error="not in any error")
VERBS = ("retry", "drop", "done", "bury", "hold", "unhold", "fail", "redrive")


def dead_letters(world: World, count: int, error: str = "boom", **options: Any) -> list[str]:
    return world.broker.quarantine("q", [NewMessage(b"x", **options) for _ in range(count)], error=error)


def all_over(world: World) -> None:
    """Messages in every place: dead, leased, held, done, ready, and in streams."""
    world.broker.update_queue("q", retain_completed="1h")
    dead_letters(world, MANY)
    world.fill("q", count=MANY)
    world.broker.settle([Complete(delivery) for delivery in world.broker.claim("q", limit=MANY)])
    world.fill("q", count=MANY)
    world.broker.claim("q", limit=MANY)
    world.broker.hold("q", world.fill("q", count=MANY))
    world.fill("q", count=MANY)
    world.broker.enqueue_many("q", [NewMessage(b"x", stream=f"s{n % 700}") for n in range(MANY)])


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scan_page_messages", "browse_step_messages", "operation_step_messages"):
        monkeypatch.setattr(size(name), HOLD_MESSAGES)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For calls that change nothing."""
    world = World("memory", tmp_path_factory.mktemp("crowded"))
    world.broker.create_queue("q")
    all_over(world)
    yield world
    world.close()


LOOKS: dict[str, Callable[[Broker], Any]] = {
    **{
        f"{verb} by {name}": lambda broker, verb=verb, filter=filter: getattr(broker, verb)(
            "q", filter=filter, dry_run=True
        )
        for verb in VERBS
        for name, filter in {
            "everything": DeadFilter(),
            "nothing": NEVER,
            "key": DeadFilter(key="default"),
        }.items()
    },
    "prune": lambda broker: broker.prune("q", dry_run=True),
    **{
        f"peek {where}": lambda broker, where=where: broker.peek("q", limit=10_000, where=where)
        for where in ("ready", "waiting", "leased", "done")
    },
    **{
        f"peek {where} of a key": lambda broker, where=where: broker.peek(
            "q", limit=10, where=where, key="none"
        )
        for where in ("waiting", "done")
    },
    "failure_metrics": lambda broker: broker.failure_metrics("q"),
    "explain_queue": lambda broker: broker.explain_queue("q"),
    "explain the last": lambda broker: broker.explain(broker.peek("q", limit=10_000)[MANY - 1].id),
    "explain by tail": lambda broker: broker.explain(broker.peek("q")[0].id[-12:], "q"),
    "find by tail": lambda broker: broker.find(broker.peek("q")[0].id[-12:], "q"),
    "full id by tail": lambda broker: broker.full_id(broker.peek("q")[0].id[-12:], "q", lambda queue: True),
    "stats with keys": lambda broker: broker.stats("q", keys=True),
    "browse": lambda broker: broker.browse("q", limit=10_000),
    "browse_splits": lambda broker: broker.browse_splits("q", n=4),
}
CHANGES: dict[str, Callable[[Broker], Any]] = {
    **{verb: lambda broker, verb=verb: getattr(broker, verb)("q", filter=DeadFilter()) for verb in VERBS},
    "redrive by ids": lambda broker: broker.redrive(
        "q", ids=[info.id for info in broker.peek("q.dlq", limit=10_000)]
    ),
    "drop by ids": lambda broker: broker.drop("q", [info.id for info in broker.peek("q", limit=10_000)]),
    "redrive with a rate": lambda broker: broker.redrive("q", filter=NEVER, rate=10),
    "prune": lambda broker: broker.prune("q"),
    "drain": lambda broker: broker.drain("q"),
    "purge": lambda broker: broker.purge("q"),
}


def most_per_hold(call: Callable[[Broker], Any], world: World) -> dict[str, int]:
    meter = StepMeter()
    with meter.measuring():
        call(world.broker)
    return {name: count for name, count in meter.most.items() if count > PER_HOLD}


@pytest.mark.parametrize("call", LOOKS.values(), ids=LOOKS.keys())
def test_a_dry_run_or_view_holds_the_lock_for_a_bounded_number_of_messages(
    crowded: World, call: Callable[[Broker], Any]
) -> None:
    assert most_per_hold(call, crowded) == {}


@pytest.mark.parametrize("call", CHANGES.values(), ids=CHANGES.keys())
def test_a_verb_holds_the_lock_for_a_bounded_number_of_messages(
    memory_world: World, call: Callable[[Broker], Any]
) -> None:
    all_over(memory_world)
    assert most_per_hold(call, memory_world) == {}


# The turns of steps and other callers

BY_STEPS: dict[str, Callable[[Broker], Any]] = {
    "hold": lambda broker: broker.hold("q", filter=DeadFilter()),
    "bury": lambda broker: broker.bury("q", filter=DeadFilter()),
    "done": lambda broker: broker.done("q", filter=DeadFilter()),
    "drop": lambda broker: broker.drop("q", filter=DeadFilter()),
    "retry": lambda broker: broker.retry("q", filter=DeadFilter()),
    "unhold": lambda broker: broker.unhold("q", filter=DeadFilter()),
    "fail": lambda broker: broker.fail("q", filter=DeadFilter()),
    "redrive": lambda broker: broker.redrive("q"),
    "redrive by ids": CHANGES["redrive by ids"],
    "drain": lambda broker: broker.drain("q"),
    "prune": lambda broker: broker.prune("q", older_than="0s", which="done"),
    "purge": lambda broker: broker.purge("q"),
}


@pytest.mark.parametrize("call", BY_STEPS.values(), ids=BY_STEPS.keys())
def test_a_caller_that_waits_for_a_step_goes_before_the_next_step(
    memory_world: World, call: Callable[[Broker], Any]
) -> None:
    all_over(memory_world)
    world, order = memory_world, list[str]()
    lock: Any = engine_lock(world.broker)
    caller = threading.Thread(target=lambda: world.broker.enqueue("other", b"waited"))
    world.broker.create_queue("other")

    def note(step: CommitStep) -> None:
        """During the second step, under the lock, a caller comes and waits."""
        order.append("caller" if "enqueue" in step else "step")
        if len(order) == 2:
            caller.start()
            wait_until(lambda: bool(lock.waiting))

    world.store.on_step = note
    call(world.broker)
    caller.join()
    assert order[:4] == ["step", "step", "caller", "step"]


# What changes between the scan and the commit


def failing_again(world: World, message_id: str, error: str) -> None:
    """Dead once more, of another error."""
    world.broker.redrive("q", ids=[message_id])
    world.broker.settle([Fail(world.claim_one("q"), dead=True, error=error)])


@pytest.mark.parametrize("verb", ["retry", "drop", "redrive"])
def test_a_dead_letter_that_is_gone_by_the_commit_is_not_changed(world: World, verb: str) -> None:
    gone, kept = dead_letters(world, 2)
    with after_the_first_look(world.broker, lambda: world.broker.drop("q", [gone])):
        result = getattr(world.broker, verb)("q", filter=DeadFilter(error="boom"))
    if verb == "redrive":
        assert (result.matched, result.moved) == (1, 1)
    else:
        assert (result.changed, result.skipped) == ((kept,), ())
    with pytest.raises(MessageNotFound):
        world.broker.find(gone)


@pytest.mark.parametrize("verb", ["retry", "drop"])
def test_a_message_that_the_filter_no_longer_selects_is_skipped(world: World, verb: str) -> None:
    other, same = dead_letters(world, 2)
    with after_the_first_look(world.broker, lambda: failing_again(world, other, "something else")):
        result = getattr(world.broker, verb)("q", filter=DeadFilter(error="boom"))
    assert (result.changed, result.skipped) == (
        (same,),
        ((other, "it changed while the filter was applied; try again"),),
    )
    assert world.broker.find(other).failures[-1].error == "something else"


def test_a_redrive_passes_over_a_dead_letter_that_died_of_something_else_since(world: World) -> None:
    other, same = dead_letters(world, 2)
    with after_the_first_look(world.broker, lambda: failing_again(world, other, "something else")):
        assert world.broker.redrive("q", filter=DeadFilter(error="boom")).moved == 1
    assert (world.broker.find(other).queue, world.broker.find(same).queue) == ("q.dlq", "q")


def test_a_redrive_leaves_a_dead_letter_that_was_leased_since(world: World) -> None:
    leased, free = dead_letters(world, 2)
    with after_the_first_look(world.broker, lambda: world.claim_one("q.dlq")):
        assert world.broker.redrive("q").moved == 1
    assert (world.broker.find(leased).where, world.broker.find(free).queue) == ("leased", "q")


def test_a_message_in_a_state_where_the_verb_no_longer_applies_is_skipped(world: World) -> None:
    message_id = world.broker.enqueue("q", b"")
    world.broker.hold("q", [message_id])
    with after_the_first_look(world.broker, lambda: world.broker.unhold("q", [message_id])):
        result = world.broker.unhold("q", filter=DeadFilter())
    assert (result.changed, result.skipped) == ((), ((message_id, "not held"),))


def test_a_lease_taken_since_the_scan_is_revoked(world: World) -> None:
    message_id = world.broker.enqueue("q", b"")
    taken: list[Any] = []
    with after_the_first_look(world.broker, lambda: taken.append(world.claim_one("q"))):
        assert world.broker.hold("q", filter=DeadFilter()).changed == (message_id,)
    assert world.broker.settle([Complete(taken[0])])[0].outcome == "lost_lease"


def test_a_filter_leaves_alone_what_comes_after_it_began(world: World) -> None:
    """Leased messages are scanned first; what is ready is read after the newcomers came."""
    leased, ready = world.fill("q", count=2)
    world.claim_one("q")
    with after_the_first_look(world.broker, lambda: world.fill("q", count=3)):
        assert world.broker.drop("q", filter=DeadFilter()).changed == (leased, ready)
    assert world.counts("q") == (3, 0, 0, 0)


@pytest.mark.parametrize("verb", ["bury", "hold", "drop"])
def test_a_message_that_its_verb_moves_ahead_of_the_scan_is_told_of_once(
    memory_world: World, verb: str
) -> None:
    ids = memory_world.fill("q", count=3 * HOLD_MESSAGES)
    result = getattr(memory_world.broker, verb)("q", filter=DeadFilter())
    assert (sorted(result.changed), result.skipped, result.more) == (sorted(ids), (), False)


def test_a_step_that_fails_leaves_the_steps_before_it_whole(world: World) -> None:
    world.fill("q", count=2 * HOLD_MESSAGES)
    commits: list[Any] = []

    def second_fails(step: CommitStep) -> None:
        commits.append(step)
        if len(commits) == 2:
            raise StoreFull("here", 0, 1)

    world.store.on_step = second_fails
    with pytest.raises(StoreFull):
        world.broker.hold("q", filter=DeadFilter())
    world.store.on_step = ignore
    assert world.counts("q") == (HOLD_MESSAGES, HOLD_MESSAGES, 0, 0)
    assert len(world.broker.hold("q", filter=DeadFilter()).changed) == HOLD_MESSAGES


def test_a_drain_that_fails_midway_returns_what_it_has_removed(world: World) -> None:
    world.fill("q", count=200)
    commits: list[Any] = []

    def second_fails(step: CommitStep) -> None:
        commits.append(step)
        if len(commits) == 2:
            raise StoreFull("here", 0, 1)

    world.store.on_step = second_fails
    drained = world.broker.drain("q")
    world.store.on_step = ignore
    assert 0 < len(drained) < 200
    rest = world.broker.drain("q")
    assert len({info.id for info in [*drained, *rest]}) == 200


# The end of a scan

SCANS: dict[str, Callable[[Broker], Any]] = {
    "retry": lambda broker: broker.retry("q", filter=DeadFilter(error_regex="(a|b)*a(a|b){100}c")),
    "drop dry run": lambda broker: broker.drop(
        "q", filter=DeadFilter(error_regex="(a|b)*a(a|b){100}c"), dry_run=True
    ),
    "redrive": lambda broker: broker.redrive("q", filter=DeadFilter(error_regex="(a|b)*a(a|b){100}c")),
    "redrive dry run": lambda broker: broker.redrive(
        "q", filter=DeadFilter(error_regex="(a|b)*a(a|b){100}c"), dry_run=True
    ),
    "failure_metrics": lambda broker: broker.failure_metrics("q"),
    "peek": lambda broker: broker.peek("q.dlq", limit=100),
}


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS.keys())
def test_closing_the_broker_ends_a_scan(world: World, scan: Callable[[Broker], Any]) -> None:
    dead_letters(world, 3, "ab")
    world.broker.settle([Fail(world.broker.claim("q")[0], retry_in="1h") for _ in world.fill("q", count=1)])
    with after_the_first_look(world.broker, world.broker.close), pytest.raises(BrokerClosed):
        scan(world.broker)
    world.restart()
    assert world.counts("q") == (0, 1, 0, 3)


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS.keys())
def test_a_server_that_stops_ends_a_scan(world: World, scan: Callable[[Broker], Any]) -> None:
    dead_letters(world, 3, "ab")
    world.broker.settle([Fail(world.broker.claim("q")[0], retry_in="1h") for _ in world.fill("q", count=1)])
    with after_the_first_look(world.broker, world.broker.interrupt_waits), pytest.raises(ServerStopping):
        scan(world.broker)
    assert world.counts("q") == (0, 1, 0, 3)


def stop_at_the_next_commit(world: World) -> None:
    def stop(step: CommitStep) -> None:
        world.broker.interrupt_waits()

    world.store.on_step = stop


def test_a_verb_that_has_changed_something_when_the_server_stops_says_what(world: World) -> None:
    ids = dead_letters(world, 2 * HOLD_MESSAGES)
    stop_at_the_next_commit(world)
    result = world.broker.drop("q", filter=DeadFilter())
    assert (list(result.changed), result.more) == (ids[:HOLD_MESSAGES], True)


def test_a_redrive_that_has_moved_something_when_the_server_stops_goes_on_after_the_next_start(
    world: World,
) -> None:
    dead_letters(world, 2 * HOLD_MESSAGES)
    stop_at_the_next_commit(world)
    result = world.broker.redrive("q")
    assert (result.moved, result.intent_id is not None) == (HOLD_MESSAGES, True)
    world.store.on_step = ignore
    world.restart()
    world.clock.advance(ms=1)
    world.broker.run_due()
    assert world.counts("q") == (2 * HOLD_MESSAGES, 0, 0, 0)
    assert world.broker.intents() == []


def test_a_turn_of_the_timer_searches_for_a_bounded_number_of_hostile_patterns(world: World) -> None:
    """Leases expire on the same timer: between two turns they may."""
    dead_letters(world, 20, "ab" * 4000)
    steps: list[int] = []
    world.broker.redrive("q", filter=DeadFilter(error_regex="(a|b)*a(a|b){100}c"), rate=1_000_000)
    with between_steps(world.broker, lambda: steps.append(1)):
        world.broker.run_due()
    assert len(steps) > 20 / 5
    assert world.broker.intents() == []
