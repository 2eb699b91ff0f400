"""Requests under an id, of callers with a key: rights come before memory, and each request of an exchange has its own."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import NewMessage, errors
from fairlead.request import VERBS, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.queues import Purge
from tests.security.scene import Scene
from tests.security.test_strangers import new_request

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
    key, request_id = scene.key("produce:q", "consume:q"), new_request(scene)
    caller = scene.as_key(key)
    first = caller.once(request_, request_id)
    assert repr(caller.once(request_, request_id)) == repr(first)
    scene.broker.keys.set_grants(key.info.id, ["consume:q"])
    before = scene.broker.stats("q")
    for one in (request_id, new_request(scene)):
        with pytest.raises(errors.Forbidden) as refused:
            caller.once(request_, one)
        assert refused.value.fields == {"right": "produce", "queue": "q"}
    assert scene.broker.stats("q") == before
    scene.broker.keys.revoke(key.info.id)
    with pytest.raises(errors.Unauthenticated):
        caller.once(request_, request_id)


@pytest.mark.parametrize("refused", [Enqueue("theirs", b"x"), EnqueueMany("nowhere", []), Claim("theirs")])
def test_nothing_of_an_exchange_runs_when_one_of_its_requests_is_refused(
    scene: Scene, refused: Request[Any]
) -> None:
    scene.broker.create_queue("q")
    scene.broker.create_queue("theirs")
    caller, request_id = scene.with_grants("produce:q", "consume:q"), new_request(scene)
    for requests in ([Enqueue("q", b"x"), refused], [refused, Enqueue("q", b"x")]):
        with pytest.raises(errors.Forbidden):
            caller.once(Exchange(requests), request_id)
    assert scene.broker.stats("q").totals.enqueued == 0
    assert len(caller.once(Exchange([Enqueue("q", b"x")]), request_id)) == 1


@pytest.mark.parametrize("verb", ["purge", "claim"])
def test_a_verb_that_cannot_be_remembered_is_refused_as_without_a_key(scene: Scene, verb: str) -> None:
    scene.broker.create_queue("q")
    scene.broker.enqueue("q", b"x")
    request = VERBS[verb].request("q")  # type: ignore[call-arg]
    with pytest.raises(errors.InvalidRequest) as in_process:
        scene.broker.once(request, new_request(scene))
    with pytest.raises(errors.InvalidRequest) as behind_layers:
        scene.all_powerful().once(request, new_request(scene))
    assert str(behind_layers.value) == str(in_process.value)
    assert scene.broker.stats("q").ready == 1
    with pytest.raises(errors.Forbidden):
        scene.with_grants("produce:q").once(Purge("q"), new_request(scene))
