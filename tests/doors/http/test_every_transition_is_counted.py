"""Each transition moves its own metrics, with the right labels, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release, Start
from fairlead.decide.lifecycle import TRANSITIONS
from fairlead.records.facts import Move, StateFact
from fairlead.server import metric_facts
from fairlead.server.metric_names import CALLS_REFUSED, INVALID, METRICS, REFUSED, REQUESTS
from fairlead.server.metrics import Metrics
from tests.doors.http.shown import grown, show
from tests.integration.world import World

Case = tuple[Callable[[World], object], Callable[[World, object], object], dict[str, float]]


def _fill(count: int = 1, **options: object) -> Callable[[World], object]:
    return lambda world: world.fill("q", count=count, **options)


def _claimed(world: World) -> object:
    world.fill("q", count=1)
    return world.claim_one("q")


def _dead(world: World) -> object:
    _fail(world, _claimed(world), dead=True)
    return None


def _in_stream(world: World) -> object:
    world.fill("q", count=2, stream="s")
    return world.claim_one("q")


def _expires_to_dead(world: World) -> object:
    world.broker.update_queue("q", expired_to_dead=True, ttl="5s")
    world.fill("q", count=1)
    return None


def _settle(world: World, *items: object) -> None:
    results = world.broker.settle(items)  # type: ignore[arg-type]
    assert all(result.ok for result in results), results


def _fail(world: World, delivery: object, **how: object) -> None:
    _settle(world, Fail(delivery, **how))  # type: ignore[arg-type]


def _id(delivery: object) -> list[str]:
    return [delivery.id]  # type: ignore[attr-defined]


def _nothing(world: World) -> object:
    return None


#: By the event of the lifecycle table, and what else there is to say of it: before, the thing itself, what it
#: counts.
CASES: dict[str, Case] = {
    "enqueued": (_nothing, lambda w, _: w.fill("q", count=3), {"messages_enqueued_total{queue=q}": 3}),
    "quarantined": (
        _nothing,
        lambda w, _: w.broker.quarantine("q", [NewMessage(b""), NewMessage(b"")], reason="poison_message"),
        {"messages_quarantined_total{queue=q}": 2},
    ),
    "leased": (_fill(3), lambda w, _: w.broker.claim("q", limit=2), {"messages_delivered_total{queue=q}": 2}),
    "leased in the dead letters": (
        _dead,
        lambda w, _: w.claim_one("q.dlq"),
        {"messages_delivered_total{queue=q.dlq}": 1},
    ),
    "completed": (_claimed, lambda w, d: _settle(w, Complete(d)), {"messages_completed_total{queue=q}": 1}),  # type: ignore[arg-type]
    "completed by hand": (
        _claimed,
        lambda w, d: w.broker.done("q", _id(d)),
        {"messages_completed_total{queue=q}": 1},
    ),
    "released": (
        _claimed,
        lambda w, d: _settle(w, Release(d)),
        {"messages_released_total{cause=asked,queue=q}": 1},  # type: ignore[arg-type]
    ),
    "released by a lease that ran out unstarted": (
        lambda w: (w.fill("q", count=1), w.claim_one("q", started=False))[1],
        lambda w, _: w.clock.advance(seconds=30),
        {"messages_released_total{cause=lease_expiry,queue=q}": 1, "leases_expired_total{queue=q}": 1},
    ),
    "retried": (
        _claimed,
        lambda w, d: _fail(w, d, reason="dependency_failure"),
        {
            "messages_failed_total{queue=q,reason=dependency_failure}": 1,
            "messages_retried_total{queue=q,when=at_once}": 1,
        },
    ),
    "retried after a lease that ran out": (
        _claimed,
        lambda w, _: w.clock.advance(seconds=30),
        {
            "messages_failed_total{queue=q,reason=timeout_exceeded}": 1,
            "messages_retried_total{queue=q,when=at_once}": 1,
            "leases_expired_total{queue=q}": 1,
        },
    ),
    "delayed": (
        _claimed,
        lambda w, d: _fail(w, d, retry_in="1m"),
        {"messages_failed_total{queue=q,reason=unknown}": 1, "messages_retried_total{queue=q,when=later}": 1},
    ),
    "due": (
        _fill(2, delay="1m"),
        lambda w, _: w.clock.advance(seconds=60),
        {"messages_due_total{queue=q}": 2},
    ),
    "held": (_claimed, lambda w, d: w.broker.hold("q", _id(d)), {"messages_held_total{queue=q}": 1}),
    "buried": (
        _claimed,
        lambda w, d: _fail(w, d, dead=True, reason="validation_failure"),
        {
            "messages_failed_total{queue=q,reason=validation_failure}": 1,
            "messages_dead_total{queue=q,reason=validation_failure}": 1,
        },
    ),
    "buried at the ceiling, as poison": (
        lambda w: (w.broker.update_queue("q", max_attempts=1), _claimed(w))[1],
        lambda w, d: _fail(w, d, reason="handler_exception"),
        {
            "messages_failed_total{queue=q,reason=handler_exception}": 1,
            "messages_dead_total{queue=q,reason=poison_message}": 1,
        },
    ),
    "buried by an operator, which is no failed try": (
        _claimed,
        lambda w, d: w.broker.bury("q", _id(d)),
        {"messages_dead_total{queue=q,reason=unknown}": 1},
    ),
    "buried at the end of its life": (
        _expires_to_dead,
        lambda w, _: w.clock.advance(seconds=5),
        {"messages_dead_total{queue=q,reason=unknown}": 1},
    ),
    "redriven": (_dead, lambda w, _: w.broker.redrive("q"), {"messages_redriven_total{queue=q}": 1}),
    "redriven by retry": (
        _dead,
        lambda w, _: w.broker.retry("q", [w.broker.peek("q.dlq")[0].id]),
        {"messages_redriven_total{queue=q}": 1},
    ),
    "promoted": (
        _in_stream,
        lambda w, d: _settle(w, Complete(d)),  # type: ignore[arg-type]
        {"messages_completed_total{queue=q}": 1, "stream_fronts_total{change=promoted,queue=q}": 1},
    ),
    "demoted": (
        _in_stream,
        lambda w, d: (
            _fail(w, d, retry_in="1m"),
            w.broker.release_stream("q", "s"),
            w.clock.advance(seconds=60),
        ),
        {
            "messages_failed_total{queue=q,reason=unknown}": 1,
            "messages_retried_total{queue=q,when=later}": 1,
            "messages_due_total{queue=q}": 1,
            "stream_fronts_total{change=promoted,queue=q}": 2,
            "stream_fronts_total{change=demoted,queue=q}": 1,
        },
    ),
    "expired": (
        _fill(1, ttl="5s"),
        lambda w, _: w.clock.advance(seconds=5),
        {"messages_expired_total{cause=ttl,queue=q}": 1},
    ),
    "expired dead letter": (
        lambda w: (w.broker.update_queue("q", dead_retention="1m"), _dead(w))[1],
        lambda w, _: w.clock.advance(seconds=60),
        {"messages_expired_total{cause=retention,queue=q.dlq}": 1},
    ),
    "completed and kept long enough": (
        lambda w: (
            w.broker.update_queue("q", retain_completed="1m"),
            w.broker.done("q", w.fill("q", count=1)),
        )[1],
        lambda w, _: w.clock.advance(seconds=60),
        {"messages_expired_total{cause=completed,queue=q}": 1},
    ),
    "dropped": (
        _claimed,
        lambda w, d: w.broker.drop("q", _id(d)),
        {"messages_dropped_total{cause=asked,queue=q}": 1},
    ),
    "dropped by a purge": (
        _fill(4),
        lambda w, _: w.broker.purge("q"),
        {"messages_dropped_total{cause=purge,queue=q}": 4},
    ),
    "extended": (
        _claimed,
        lambda w, d: (w.clock.advance(ms=10), _settle(w, Extend(d))),
        {"leases_extended_total{queue=q}": 1},  # type: ignore[arg-type]
    ),
    "extended with progress": (
        _claimed,
        lambda w, d: (w.clock.advance(ms=10), _settle(w, Extend(d, progress=1))),  # type: ignore[arg-type]
        {"leases_extended_total{queue=q}": 1, "messages_progress_saved_total{queue=q}": 1},
    ),
    "started": (
        lambda w: (w.fill("q", count=1), w.claim_one("q", started=False))[1],
        lambda w, d: _settle(w, Start(d)),  # type: ignore[arg-type]
        {"leases_started_total{queue=q}": 1},
    ),
    "a hook that ran and one that failed": (
        lambda w: w.broker.update_queue(
            "q", on_enqueue="function on_enqueue(msg) if msg.headers.bad then error() end return {} end"
        ),
        lambda w, _: w.broker.enqueue_many(
            "q", [NewMessage(b""), NewMessage(b"", {"bad": "1"}), NewMessage(b"")]
        ),
        {
            "messages_enqueued_total{queue=q}": 3,
            "hook_calls_total{function=on_enqueue,outcome=ran,queue=q}": 2,
            "hook_calls_total{function=on_enqueue,outcome=failed,queue=q}": 1,
        },
    ),
    "returned": (
        lambda w: (w.fill("q", count=1, throttle_keys=["t"]), w.claim_one("q"))[1],
        lambda w, d: w.broker.settle([Fail(d, "429", retry_after="1m", close="t")]),
        {"messages_returned_total{queue=q}": 1},
    ),
    "a throttle without tokens": (
        lambda w: (w.broker.config.set("throttle:t:rate", "1"), w.fill("q", count=2, throttle_keys=["t"])),
        lambda w, _: w.broker.claim("q", limit=2),
        {"messages_delivered_total{queue=q}": 1, "throttle_holds_total{queue=q}": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_transition_moves_its_metrics_and_no_others(case: str, world: World, metrics: Metrics) -> None:
    before, act, expected = CASES[case]
    subject = before(world)
    earlier = show(metrics)
    act(world, subject)
    assert grown(earlier, show(metrics)) == expected


def test_every_event_of_the_lifecycle_has_its_case() -> None:
    assert set(TRANSITIONS) - set(CASES) == set()


def test_every_kind_of_fact_is_counted_or_named_as_bookkeeping() -> None:
    assert metric_facts.COUNTED.keys() | metric_facts.BOOKKEEPING == set(get_args(StateFact))
    assert metric_facts.COUNTED.keys() & metric_facts.BOOKKEEPING == set()
    assert set(metric_facts.MOVES) == set(get_args(Move))


def test_every_counter_is_moved_by_some_case() -> None:
    """But for those that the doors and the layers move."""
    moved = {
        "fairlead_" + series.partition("{")[0] for _, _, expected in CASES.values() for series in expected
    }
    assert moved == {definition.name for definition in METRICS if definition.kind == "counter"} - {
        CALLS_REFUSED.name,
        REFUSED.name,
        INVALID.name,
        REQUESTS.name,
    }
