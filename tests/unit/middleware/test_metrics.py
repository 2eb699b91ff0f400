from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from fairlead import Broker
from fairlead.errors import QueueNotFound
from fairlead.middleware.metrics import MetricsLayer, RequestCounts
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.request import LOCAL
from fairlead.server.metrics import Metrics as Page
from fairlead.testing import open_in_memory
from fairlead.verbs.inspect import Stats


@pytest.fixture
def broker() -> Iterator[Broker]:
    with open_in_memory() as broker:
        yield broker


def test_requests_are_counted_by_outcome() -> None:
    counts = RequestCounts()
    answers: list[Any] = ["fine", QueueNotFound("q"), QueueNotFound("p"), ZeroDivisionError(), "fine"]

    def engine(request: object, caller: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    layer = MetricsLayer(engine, counts)
    assert layer(Stats("q"), LOCAL) == "fine"
    for error in (QueueNotFound, QueueNotFound, ZeroDivisionError):
        with pytest.raises(error):
            layer(Stats("q"), LOCAL)
    assert layer(Stats("q"), LOCAL) == "fine"
    assert counts.outcomes == {"ok": 2, "queue_not_found": 2, "failed": 1}
    assert sum(counts.seconds.counts) == 5
    assert counts.seconds.sum > 0


def test_no_request_of_several_threads_is_missed() -> None:
    counts = RequestCounts()
    threads = [Thread(target=lambda: [counts.add("ok", 0.0) for _ in range(20_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.outcomes == {"ok": 80_000}
    assert sum(counts.seconds.counts) == 80_000


def test_the_page_shows_requests_by_verb_and_outcome_and_their_times(broker: Broker) -> None:
    layers = Layers(broker, keys=True)
    page = Page(broker, requests=layers.requests).registry
    caller = AdmittedCaller(layers, LOCAL)
    caller.create_queue("q")
    caller.enqueue("q", b"")
    with pytest.raises(QueueNotFound):
        caller.enqueue("nowhere", b"")

    def shown(name: str, **labels: str) -> float | None:
        return page.get_sample_value(f"fairlead_{name}", labels)

    assert shown("requests_total", verb="enqueue", outcome="ok") == 1
    assert shown("requests_total", verb="enqueue", outcome="queue_not_found") == 1
    assert shown("request_seconds_count", verb="enqueue") == 2
    assert shown("request_seconds_count", verb="create_queue") == 1
    assert shown("requests_total", verb="claim", outcome="ok") is None


def test_a_request_that_another_layer_refuses_is_not_counted(broker: Broker) -> None:
    layers = Layers(broker, keys=True)
    key = broker.keys.create("nobody", ["consume:other"])
    stranger = layers.admit(f"Bearer {key.secret}", "x")
    with pytest.raises(Exception, match="produce"):
        stranger.enqueue("q", b"")
    assert layers.requests["enqueue"].outcomes == {}
