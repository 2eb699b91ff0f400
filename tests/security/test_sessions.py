"""Requests of a session, of callers with a key: rights come before memory, and each request of an exchange has its own."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import NewMessage, errors
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.queues import Purge
from tests.security.scene import Scene
from tests.turns import new_place, next_place

REQUESTS: list[Request[Any]] = [
    Enqueue("q", b"x"),
    EnqueueMany("q", [NewMessage(b"x")]),
    Exchange([Enqueue("q", b"x")]),
    Exchange([Enqueue("q", b"x"), Claim("q")]),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_a_remembered_answer_is_not_given_once_the_right_is_gone(
    scene: Scene, request_: Request[Any]
) -> None:
    scene.broker.create_queue("q")
    key = scene.key("produce:q", "consume:q")
    caller = scene.as_key(key)
    place = new_place(caller)
    first = caller.once(request_, **place)
    assert repr(caller.once(request_, **place)) == repr(first)
    scene.broker.keys.set_grants(key.info.id, ["consume:q"])
    before = scene.broker.stats("q")
    for one in (place, next_place(place)):
        with pytest.raises(errors.Forbidden) as refused:
            caller.once(request_, **one)
        assert refused.value.fields == {"right": "produce", "queue": "q"}
    assert scene.broker.stats("q") == before
    scene.broker.keys.revoke(key.info.id)
    with pytest.raises(errors.Unauthenticated):
        caller.once(request_, **place)


@pytest.mark.parametrize("refused", [Enqueue("theirs", b"x"), EnqueueMany("nowhere", []), Claim("theirs")])
def test_nothing_of_an_exchange_runs_when_one_of_its_requests_is_refused(
    scene: Scene, refused: Request[Any]
) -> None:
    scene.broker.create_queue("q")
    scene.broker.create_queue("theirs")
    caller = scene.with_grants("produce:q", "consume:q")
    place = new_place(caller)
    for requests in ([Enqueue("q", b"x"), refused], [refused, Enqueue("q", b"x")]):
        with pytest.raises(errors.Forbidden):
            caller.once(Exchange(requests), **place)
    assert scene.broker.stats("q").totals.enqueued == 0
    assert len(caller.once(Exchange([Enqueue("q", b"x")]), **place)) == 1


def test_a_verb_that_cannot_be_remembered_is_refused_as_without_a_key(scene: Scene) -> None:
    scene.broker.create_queue("q")
    scene.broker.enqueue("q", b"x")
    with pytest.raises(errors.InvalidRequest) as in_process:
        scene.broker.once(Purge("q"), **new_place(scene.broker))
    caller = scene.all_powerful()
    with pytest.raises(errors.InvalidRequest) as behind_layers:
        caller.once(Purge("q"), **new_place(caller))
    assert str(behind_layers.value) == str(in_process.value)
    assert scene.broker.stats("q").ready == 1
    producer = scene.with_grants("produce:q")
    place = new_place(producer)
    with pytest.raises(errors.Forbidden):
        producer.once(Purge("q"), **place)
