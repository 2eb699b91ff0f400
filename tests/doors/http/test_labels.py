from __future__ import annotations

from fairlead import Fail
from fairlead.config import MetricSettings
from fairlead.server.metric_names import METRICS, OTHER
from fairlead.server.metrics import Metrics
from tests.doors.http.shown import Values, of, show
from tests.integration.world import World


def _queues(values: Values) -> set[str]:
    labels = {label for series in values for label in series.partition("{")[2].rstrip("}").split(",")}
    return {label.removeprefix("queue=") for label in labels if label.startswith("queue=")}


def test_queues_beyond_the_bound_share_one_label(world: World) -> None:
    metrics = Metrics(world.broker, clock=world.clock, settings=MetricSettings(max_queues=3))
    for number in range(8):
        world.broker.create_queue(f"q{number}", retry="none")
        world.fill(f"q{number}", count=2)
        world.broker.settle([Fail(world.claim_one(f"q{number}"))])
        world.claim_one(f"q{number}.dlq")
    shown = show(metrics)
    assert _queues(shown) == {"q", "q0", "q1", "q0.dlq", "q1.dlq", OTHER}
    assert shown["fairlead_messages_enqueued_total{queue=q1}"] == 2
    assert shown[f"fairlead_messages_enqueued_total{{queue={OTHER}}}"] == 6 * 2
    assert shown[f"fairlead_messages_delivered_total{{queue={OTHER}}}"] == 6 * 2
    assert shown[f"fairlead_queue_messages{{queue={OTHER},state=dead}}"] == 6
    assert shown["fairlead_queues"] == 9
    assert shown["fairlead_queues_in_other"] == 6


def test_the_number_of_series_does_not_follow_the_number_of_queues(world: World) -> None:
    metrics = Metrics(world.broker, clock=world.clock, settings=MetricSettings(max_queues=2))
    sizes = []
    for number in range(30):
        world.broker.create_queue(f"q{number}")
        world.fill(f"q{number}", count=1)
        world.claim_one(f"q{number}")
        sizes.append(len(show(metrics)))
    assert len(set(sizes[4:])) == 1


def test_queues_that_were_there_before_are_known_by_name(world: World) -> None:
    world.broker.create_queue("early")
    metrics = Metrics(world.broker, clock=world.clock)
    world.fill("early", count=1)
    assert show(metrics)["fairlead_messages_enqueued_total{queue=early}"] == 1


def test_a_deleted_queue_ends_its_series_and_gives_its_label_free(world: World) -> None:
    metrics = Metrics(world.broker, clock=world.clock, settings=MetricSettings(max_queues=2))
    for name in ("a", "b"):
        world.broker.create_queue(name, retry="none")
        world.fill(name, count=3)
        world.broker.settle([Fail(world.claim_one(name))])
        world.claim_one(name)
    assert _queues(show(metrics)) == {"q", "a", OTHER}
    world.broker.delete_queue("a")
    assert _queues(show(metrics)) == {"q", OTHER}
    world.broker.create_queue("c")
    world.fill("c", count=1)
    shown = show(metrics)
    assert shown["fairlead_messages_enqueued_total{queue=c}"] == 1
    assert shown[f"fairlead_messages_enqueued_total{{queue={OTHER}}}"] == 3


def test_a_queue_made_again_under_its_name_begins_at_nothing(world: World, metrics: Metrics) -> None:
    world.fill("q", count=5)
    world.broker.delete_queue("q")
    world.broker.create_queue("q")
    world.fill("q", count=1)
    assert show(metrics)["fairlead_messages_enqueued_total{queue=q}"] == 1


def test_throttle_keys_are_bounded_and_the_first_ones_stay(world: World) -> None:
    metrics = Metrics(world.broker, clock=world.clock, settings=MetricSettings(max_throttle_keys=2))
    for key in ("m", "z", "a"):
        world.broker.config.set(f"throttle:{key}:rate", "4")
        show(metrics)
    shown = show(metrics)
    assert dict(of(shown, "fairlead_throttle_tokens")) == {
        "fairlead_throttle_tokens{throttle_key=m}": 4,
        "fairlead_throttle_tokens{throttle_key=z}": 4,
    }
    assert shown["fairlead_throttle_keys"] == 3
    world.broker.config.delete("throttle:m:rate")
    assert set(dict(of(show(metrics), "fairlead_throttle_tokens"))) == {
        "fairlead_throttle_tokens{throttle_key=z}",
        "fairlead_throttle_tokens{throttle_key=a}",
    }


def test_closed_throttle_keys_count_for_the_same_bound(world: World) -> None:
    metrics = Metrics(world.broker, clock=world.clock, settings=MetricSettings(max_throttle_keys=2))
    for key in ("m", "z", "a"):
        world.broker.close_throttle(key, "1m")
    shown = show(metrics)
    assert len(dict(of(shown, "fairlead_throttle_closed"))) == 2
    assert shown["fairlead_throttle_closed_keys"] == 3


def test_no_label_comes_from_a_message_or_a_consumer(world: World, metrics: Metrics) -> None:
    allowed = {
        "queue",
        "reason",
        "when",
        "cause",
        "change",
        "function",
        "outcome",
        "operation",
        "state",
        "throttle_key",
        "kind",
        "version",
        "python",
    }
    allowed |= {"limit", "field", "door", "verb"}
    assert {label for definition in METRICS for label in definition.labels} <= allowed
    size = 0
    for number in range(50):
        message_id = world.broker.enqueue(
            "q", b"", fairness_key=f"tenant-{number}", throttle_keys=[f"t-{number}"], stream=f"s-{number}"
        )
        (delivery,) = world.broker.claim("q", consumer=f"worker-{number}")
        world.broker.settle([Fail(delivery, error=f"error {number}")])
        text = "\n".join(show(metrics))
        assert message_id not in text
        size = size or len(text.splitlines())
        assert len(text.splitlines()) == size
