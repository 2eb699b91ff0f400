from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import fairlead
from fairlead import Complete, Fail, NewMessage
from fairlead.config import LimitSettings, MetricSettings
from fairlead.errors import Overloaded
from fairlead.server.limits import Limits
from fairlead.server.metric_names import METRICS
from fairlead.server.metrics import Metrics
from tests.doors.http.shown import of, show
from tests.integration.world import Background, World, wait_until

HOOK = 'function on_enqueue(msg) if msg.headers.bad then error("no") end return {} end'


def test_messages_and_bytes_are_those_of_the_moment(world: World, metrics: Metrics) -> None:
    world.fill("q", count=5, payload=b"12345")
    world.broker.enqueue("q", b"", delay="1h")
    world.broker.settle([Fail(delivery, dead=True) for delivery in world.broker.claim("q", limit=2)])
    world.claim_one("q")
    world.broker.update_queue("q", retain_completed="1h")
    world.broker.enqueue("q", b"12345", fairness_key="done")
    world.broker.done("q", [info.id for info in world.broker.peek("q", key="done")])
    shown = show(metrics)
    assert {
        state: shown[f"fairlead_queue_messages{{queue=q,state={state}}}"]
        for state in ("ready", "waiting", "leased", "done", "dead")
    } == {
        "ready": 2,
        "waiting": 1,
        "leased": 1,
        "done": 1,
        "dead": 2,
    }
    assert shown["fairlead_queue_bytes{queue=q}"] == 15
    assert shown["fairlead_queue_dead_bytes{queue=q}"] == 10


def test_the_age_of_the_oldest_ready_message_grows_until_it_is_claimed(
    world: World, metrics: Metrics
) -> None:
    def age() -> float:
        return show(metrics)["fairlead_queue_oldest_ready_seconds{queue=q}"]

    assert age() == 0
    world.fill("q", key="a", count=1)
    world.clock.advance(ms=1_500)
    world.fill("q", key="b", count=1)
    world.clock.advance(ms=1_000)
    assert age() == 2.5
    world.broker.settle([Complete(world.claim_one("q"))])
    assert age() == 1.0


def test_the_oldest_ready_message_is_not_looked_for_among_very_many_lanes(
    world: World, metrics: Metrics
) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=f"k{number}") for number in range(101)])
    shown = show(metrics)
    assert "fairlead_queue_oldest_ready_seconds{queue=q}" not in shown
    assert shown["fairlead_queue_active_keys{queue=q}"] == 101
    assert shown["fairlead_lanes"] == 101


def test_consumers_wait_or_hold(world: World, metrics: Metrics) -> None:
    world.fill("q", count=1)
    world.claim_one("q", consumer="holder")
    waiting = Background(lambda: world.broker.claim("q", consumer="waiter", wait="1h"))
    wait_until(lambda: show(metrics)["fairlead_queue_consumers{queue=q}"] == 2)
    world.fill("q", count=1)
    assert len(waiting.result()) == 1


def test_numbered_claims_show_with_the_end_of_the_first_consumer_that_holds_one(
    world: World, metrics: Metrics
) -> None:
    world.fill("q", count=5)
    consumers = world.broker.consumers
    for name, ttl, limit in (("long", "7d", 3), ("short", "1d", 2), ("idle", "1h", 0)):
        generation = consumers.register(name, "q", ttl=ttl).generation
        if limit:
            consumers.claim(name, "q", generation, 1, limit=limit)
    shown = show(metrics)
    assert {
        name: shown[f"fairlead_queue_{name}{{queue=q}}"]
        for name in ("durable_consumers", "numbered_claims", "numbered_claim_messages")
    } == {
        "durable_consumers": 3,
        "numbered_claims": 2,
        "numbered_claim_messages": 5,
    }
    assert (
        shown["fairlead_queue_consumer_expiry_timestamp_seconds{queue=q}"]
        == consumers.show("short", "q").expires_at / 1000
    )
    for name in ("long", "short"):
        consumers.close(name, "q", consumers.show(name, "q").generation, 1)
    shown = show(metrics)
    assert "fairlead_queue_consumer_expiry_timestamp_seconds{queue=q}" not in shown
    assert shown["fairlead_queue_numbered_claims{queue=q}"] == 0


def test_of_queues_that_share_a_label_the_first_end_of_a_consumer_shows(world: World) -> None:
    metrics = Metrics(world.broker, settings=MetricSettings(max_queues=1))
    for queue, ttl in (("b", "2d"), ("c", "1d"), ("d", "3d")):
        world.broker.create_queue(queue)
        world.fill(queue, count=1)
        world.broker.consumers.claim(
            queue, queue, world.broker.consumers.register(queue, queue, ttl=ttl).generation, 1
        )
    shown = show(metrics)
    assert (
        shown["fairlead_queue_consumer_expiry_timestamp_seconds{queue=__other__}"]
        == world.broker.consumers.show("c", "c").expires_at / 1000
    )
    assert shown["fairlead_queue_numbered_claims{queue=__other__}"] == 3


def test_what_is_staged_shows_until_it_is_published(world: World, metrics: Metrics) -> None:
    world.broker.staging.stage("t", "c", "q", [NewMessage(b"x" * 1000)])
    shown = show(metrics)
    assert shown["fairlead_staged_writes"] == 1
    assert shown["fairlead_staged_bytes"] > 1000
    world.broker.staging.publish("t", "q", ["c"])
    shown = show(metrics)
    assert (shown["fairlead_staged_writes"], shown["fairlead_staged_bytes"]) == (0, 0)


def test_paused_queues_show(world: World, metrics: Metrics) -> None:
    assert show(metrics)["fairlead_queue_paused{queue=q}"] == 0
    world.broker.pause("q")
    assert show(metrics)["fairlead_queue_paused{queue=q}"] == 1


def test_an_open_hook_breaker_shows(world: World, metrics: Metrics) -> None:
    world.broker.update_queue("q", on_enqueue=HOOK)
    assert show(metrics)["fairlead_hook_breaker_open{function=on_enqueue,queue=q}"] == 0
    for _ in range(4):
        world.broker.enqueue("q", b"", headers={"bad": "1"})
    shown = show(metrics)
    assert shown["fairlead_hook_breaker_open{function=on_enqueue,queue=q}"] == 1
    assert shown["fairlead_hook_calls_total{function=on_enqueue,outcome=bypassed,queue=q}"] == 1


def test_an_open_failure_breaker_shows_by_reason(world: World, metrics: Metrics) -> None:
    world.broker.update_queue("q", failure_breaker={"failures": 1, "within": "1m", "pause": "5m"})
    assert {value for _, value in of(show(metrics), "fairlead_failure_breaker_open")} == {0}
    world.fill("q", count=1)
    world.broker.settle([Fail(world.claim_one("q"), reason="dependency_failure")])
    shown = show(metrics)
    assert shown["fairlead_failure_breaker_open{queue=q,reason=dependency_failure}"] == 1
    assert shown["fairlead_failure_breaker_open{queue=q,reason=unknown}"] == 0
    world.clock.advance(seconds=300)
    assert show(metrics)["fairlead_failure_breaker_open{queue=q,reason=dependency_failure}"] == 0


def test_tokens_and_lanes_that_wait_for_them_show(world: World, metrics: Metrics) -> None:
    world.broker.config.set("throttle:mail:rate", "1")
    world.broker.config.set("throttle:mail:burst", "2")
    world.clock.advance(seconds=1)
    assert show(metrics)["fairlead_throttle_tokens{throttle_key=mail}"] == 2
    for key in ("a", "b", "c"):
        world.fill("q", key=key, count=2, throttle_keys=["mail"])
    assert len(world.broker.claim("q", limit=10)) == 2
    shown = show(metrics)
    assert shown["fairlead_throttle_tokens{throttle_key=mail}"] == 0
    assert shown["fairlead_throttle_parked_lanes{queue=q}"] == 3
    assert shown["fairlead_throttle_holds_total{queue=q}"] >= 3


def test_closed_throttle_keys_show_until_they_are_open(world: World, metrics: Metrics) -> None:
    world.fill("q", count=1, throttle_keys=["api"])
    assert show(metrics)["fairlead_throttle_closed_keys"] == 0
    world.broker.settle([Fail(world.claim_one("q"), "429", retry_after="1m", close="api")])
    shown = show(metrics)
    assert shown["fairlead_throttle_closed{throttle_key=api}"] == shown["fairlead_throttle_closed_keys"] == 1
    world.clock.advance(seconds=60)
    assert show(metrics)["fairlead_throttle_closed{throttle_key=api}"] == 1, "only probes pass"
    world.broker.open_throttle("api")
    assert "fairlead_throttle_closed{throttle_key=api}" not in show(metrics)


def test_long_operations_under_way_show(world: World, metrics: Metrics) -> None:
    world.broker.quarantine("q", [NewMessage(b"")] * 3)
    assert show(metrics)["fairlead_intents{kind=redrive}"] == 0
    world.broker.redrive("q", rate=1)
    assert show(metrics)["fairlead_intents{kind=redrive}"] == 1
    world.clock.advance(seconds=10)
    assert show(metrics)["fairlead_intents{kind=redrive}"] == 0


def test_disk_and_doors_show_when_they_are_there_to_be_seen(world: World, tmp_path: Path) -> None:
    limits = Limits(LimitSettings(max_calls=1))
    metrics = Metrics(world.broker, data=tmp_path, limits=limits)
    with limits.call(100), limits.channel(), limits.stream():
        for _ in range(3):
            with pytest.raises(Overloaded), limits.call():
                pass
        shown = show(metrics)
    assert shown["fairlead_store_free_bytes"] > 0
    assert (
        shown["fairlead_calls_in_flight"],
        shown["fairlead_channels_open"],
        shown["fairlead_calls_in_flight_bytes"],
    ) == (1, 2, 100)
    assert shown["fairlead_calls_refused_total"] == 3
    assert (shown["fairlead_refused_total{limit=calls}"], shown["fairlead_refused_total{limit=queues}"]) == (
        3,
        0,
    )


def test_the_end_of_a_certificate_shows_where_there_is_one_and_moves_with_it(
    world: World, metrics: Metrics
) -> None:
    name = "fairlead_certificate_expiry_timestamp_seconds"
    assert name not in show(metrics)
    ends = [datetime(2027, 1, 1, tzinfo=UTC)]
    with_tls = Metrics(world.broker, certificate_ends=lambda: ends[0])
    assert show(with_tls)[name] == 1_798_761_600
    ends[0] = datetime(2028, 1, 1, tzinfo=UTC)
    assert show(with_tls)[name] == 1_830_297_600


def test_build_and_process_show(world: World, metrics: Metrics) -> None:
    shown = show(metrics)
    assert [
        value
        for series, value in of(shown, "fairlead_build_info")
        if f"version={fairlead.__version__}" in series
    ] == [1]
    assert shown["process_resident_memory_bytes"] > 0


def test_a_closed_broker_still_has_its_counts_and_says_that_it_is_down(
    world: World, metrics: Metrics
) -> None:
    world.fill("q", count=2)
    assert show(metrics)["fairlead_broker_up"] == 1
    world.broker.close()
    shown = show(metrics)
    assert shown["fairlead_broker_up"] == 0
    assert shown["fairlead_messages_enqueued_total{queue=q}"] == 2
    assert "fairlead_queue_bytes{queue=q}" not in shown


def test_names_follow_the_conventions_of_prometheus() -> None:
    for definition in METRICS:
        assert definition.name.endswith("_total") == (definition.kind == "counter"), definition
        assert bool(definition.buckets) == (definition.kind == "histogram"), definition
        assert definition.help.endswith("."), definition
        assert list(definition.buckets) == sorted(set(definition.buckets)), definition
        assert not any(unit in definition.name for unit in ("_ms", "_millis", "_kb", "_mb", "percent")), (
            definition
        )
    names = [definition.name for definition in METRICS]
    assert len(names) == len(set(names))
