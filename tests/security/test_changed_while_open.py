"""Keys that are revoked, expire or lose a right while something of theirs is open: from then on nothing more
comes, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

import fairlead
import fairlead.aio
from fairlead import Client, Complete, Delivery, Extend, NewMessage, Release, Start, errors
from fairlead.model.access import EVERY_RIGHT, NewKey, Right
from fairlead.request import VERBS, Caller, Request
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.testing import ServerProcess, run_server
from fairlead.testing.engine import engine_of
from fairlead.testing.verbs import replaced_work
from tests.faces.doors import ClientFace, outcome_at
from tests.faces.table import TABLE, furnish
from tests.integration.world import Background, wait_until
from tests.security.scene import Scene
from tests.turns import turn

#: What ends a key's right to consume, and what it is told.
ENDS: dict[str, tuple[Callable[[Any, str], object], type[errors.FairleadError]]] = {
    "revoked": (lambda keys, key_id: keys.revoke(key_id), errors.Unauthenticated),
    "without the right": (lambda keys, key_id: keys.set_grants(key_id, ["produce:*"]), errors.Forbidden),
    "with the right elsewhere": (
        lambda keys, key_id: keys.set_grants(key_id, ["consume:elsewhere/*"]),
        errors.Forbidden,
    ),
}


# In process, on a clock that the test moves


def expire(scene: Scene) -> None:
    scene.clock.advance(seconds=61)


def waiting(scene: Scene, **options: Any) -> tuple[str, Background]:
    key = scene.key("consume:q", expires_in="1m")
    x = scene.as_key(key)
    claim = Background(lambda: x.claim("q", wait="1h", **options))
    wait_until(lambda: scene.broker.stats("q").consumers == 1)
    return key.info.id, claim


@pytest.mark.parametrize("how", [*ENDS, "expired"])
@pytest.mark.parametrize("started", [True, False])
def test_what_a_waiting_claim_got_too_late_goes_to_another_at_its_old_place(
    scene: Scene, how: str, started: bool
) -> None:
    scene.broker.create_queue("q")
    key_id, claim = waiting(scene, limit=2, started=started)
    if how == "expired":
        expire(scene)
    else:
        ENDS[how][0](scene.broker.keys, key_id)
    first = scene.broker.enqueue("q", b"first")
    with pytest.raises(ENDS[how][1] if how in ENDS else errors.Unauthenticated):
        claim.result()
    second = scene.broker.enqueue("q", b"second")
    got = scene.with_grants("consume:q").claim("q", limit=10)
    assert [(delivery.id, delivery.attempts) for delivery in got] == [(first, 0), (second, 0)]


def test_a_run_of_a_stream_that_came_too_late_goes_to_another_in_order(scene: Scene) -> None:
    scene.broker.create_queue("q")
    scene.broker.pause("q")
    key_id, claim = waiting(scene, limit=10, max_per_stream=10)
    ids = scene.broker.enqueue_many("q", [NewMessage(b"%d" % at, stream="s") for at in range(5)])
    scene.broker.keys.revoke(key_id)
    scene.broker.resume("q")
    with pytest.raises(errors.Unauthenticated):
        claim.result()
    got = scene.with_grants("consume:q").claim("q", limit=10, max_per_stream=10)
    assert [(delivery.id, delivery.attempts) for delivery in got] == [(message_id, 0) for message_id in ids]


def test_what_a_revoked_key_could_not_take_wakes_the_next_who_waits(scene: Scene) -> None:
    scene.broker.create_queue("q")
    key_id, claim = waiting(scene)
    other = scene.with_grants("consume:q")
    patient = Background(lambda: other.claim("q", wait="1h", consumer="patient"))
    wait_until(lambda: scene.broker.stats("q").consumers == 2)
    scene.broker.keys.revoke(key_id)
    # A change of keys wakes both, and whoever looks late may take the message out of turn.
    waiters = engine_of(scene.broker).waiters
    wait_until(lambda: not any(one.woken for queue in list(waiters.by_queue.values()) for one in list(queue)))
    message_id = scene.broker.enqueue("q", b"")
    with pytest.raises(errors.Unauthenticated):
        claim.result()
    assert [delivery.id for delivery in patient.result()] == [message_id]


#: A short way of the engine carries out the first of these claims, and a transaction the others.
CLAIMS: dict[str, Callable[[Any], list[Delivery]]] = {
    "claim": lambda x: x.claim("q"),
    "claim that may wait": lambda x: x.claim("q", wait="1h"),
    "claim with a token": lambda x: x.claim("q", token="t"),
    "exchange": lambda x: turn(x, "me", claim={"queue": "q"}).deliveries,
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("claim", CLAIMS)
def test_what_was_claimed_in_the_moment_in_which_a_key_ended_is_given_back(
    scene: Scene, claim: str, how: str
) -> None:
    scene.broker.create_queue("q")
    message_id = scene.broker.enqueue("q", b"")
    key = scene.key("consume:q")

    def carry_out_and_end(request: Request[Any], caller: Caller) -> Any:
        done = scene.broker.do(request, caller)
        assert scene.broker.stats("q").leased == 1
        ENDS[how][0](scene.broker.keys, key.info.id)
        return done

    x = scene.access.around(carry_out_and_end).admit(f"Bearer {key.secret}", "test")
    try:
        got = CLAIMS[claim](x)
    except ENDS[how][1]:
        got = []
    assert got == []
    assert [(delivery.id, delivery.attempts) for delivery in scene.broker.claim("q")] == [(message_id, 0)]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("verb", ["claim", "exchange"])
def test_what_was_claimed_in_the_transaction_in_which_a_key_ended_is_given_back(
    scene: Scene, verb: str, how: str
) -> None:
    scene.broker.create_queue("q")
    message_id = scene.broker.enqueue("q", b"")
    key = scene.key("consume:q")
    request = VERBS[verb].request
    x = scene.as_key(key)

    def carry_out_and_end(work: Callable[[], Any]) -> Any:
        done = work()
        ENDS[how][0](scene.broker.keys, key.info.id)
        return done

    with replaced_work(request, carry_out_and_end):
        try:
            got = x.claim("q") if verb == "claim" else turn(x, "me", claim={"queue": "q"}).deliveries
        except errors.Unauthenticated:
            got = []
    assert got == []
    assert [(delivery.id, delivery.attempts) for delivery in scene.broker.claim("q")] == [(message_id, 0)]


def test_what_a_key_holds_stays_leased_when_it_is_revoked_and_runs_out_by_itself(scene: Scene) -> None:
    scene.broker.create_queue("q", visibility_timeout="30s")
    scene.broker.enqueue("q", b"")
    key = scene.key("consume:q")
    x = scene.as_key(key)
    (held,) = x.claim("q", token="t", consumer="ann")
    scene.broker.keys.revoke(key.info.id)
    calls: list[Callable[[], object]] = [
        lambda: x.settle([Complete(held)]),
        lambda: x.settle([Extend(held)]),
        lambda: x.settle([Start(held)]),
        lambda: x.settle([Release(held)]),
        lambda: turn(x, "ann", settle=[Complete(held)]),
        lambda: turn(x, "ann", settle=[Extend(held)]),
        lambda: x.ack("q", held.id),
        lambda: x.nack("q", held.id),
        lambda: x.goodbye("ann"),
        lambda: x.claim("q", token="t"),
    ]
    for call in calls:
        with pytest.raises(errors.Unauthenticated):
            call()
    assert scene.broker.stats("q").leased == 1
    scene.clock.advance(seconds=31)
    (again,) = scene.with_grants("consume:q").claim("q")
    assert (again.id, again.attempts) == (held.id, 1)


# A real server and its clients


class Served(NamedTuple):
    server: ServerProcess
    root: Client

    def client(self, *grants: str) -> tuple[Client, NewKey]:
        key = self.root.keys.create("a caller", grants)
        return fairlead.connect(self.server.address, api_key=key.secret), key

    def queue(self, name: str) -> str:
        self.root.create_queue(name, visibility_timeout="1h")
        return name


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("changed") / "data"
    with run_server(data, settings={"durability": "os", "auth.mode": "keys"}) as server:
        with fairlead.connect(server.address, api_key=(data / BOOTSTRAP_FILE).read_text().strip()) as root:
            yield Served(server, root)
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.mark.parametrize("how", ENDS)
def test_a_claim_of_a_client_that_waits_ends_with_the_reason(served: Served, how: str) -> None:
    queue = served.queue(f"wait-{how.replace(' ', '-')}")
    client, key = served.client(f"consume:{queue}")
    with client:
        claim = Background(lambda: client.claim(queue, wait="1h"))
        wait_until(lambda: served.root.stats(queue).consumers == 1)
        end, told = ENDS[how]
        end(served.root.keys, key.info.id)
        first = served.root.enqueue(queue, b"")
        with pytest.raises(told):
            claim.result()
        second = served.root.enqueue(queue, b"")
        got = served.root.claim(queue, limit=2)
        assert [(delivery.id, delivery.attempts) for delivery in got] == [(first, 0), (second, 0)]


@pytest.mark.parametrize("how", ENDS)
def test_a_loop_of_a_client_ends_with_the_reason_and_does_not_try_again(served: Served, how: str) -> None:
    queue = served.queue(f"loop-{how.replace(' ', '-')}")
    client, key = served.client(f"consume:{queue}")
    with client:
        consumption = client.consume(queue, prefetch=2)
        served.root.enqueue(queue, b"first")
        assert next(consumption).payload == b"first"
        wait_until(lambda: served.root.stats(queue).consumers == 1)
        end, told = ENDS[how]
        end(served.root.keys, key.info.id)
        second = served.root.enqueue(queue, b"second")
        for _ in range(2):
            with pytest.raises(told):
                next(consumption)
        consumption.close()
        assert [(delivery.id, delivery.attempts) for delivery in served.root.claim(queue)] == [(second, 0)]


def test_an_asynchronous_loop_ends_with_the_reason(served: Served) -> None:
    queue = served.queue("loop-aio")
    key = served.root.keys.create("a caller", [f"consume:{queue}"])

    async def work() -> None:
        async with await fairlead.aio.connect(served.server.address, api_key=key.secret) as client:
            consumption = client.consume(queue, prefetch=2)
            await asyncio.to_thread(served.root.enqueue, queue, b"first")
            assert (await anext(consumption)).payload == b"first"
            await asyncio.to_thread(served.root.keys.revoke, key.info.id)
            await asyncio.to_thread(served.root.enqueue, queue, b"second")
            with pytest.raises(errors.Unauthenticated):
                await anext(consumption)
            with pytest.raises(errors.Unauthenticated):
                await client.enqueue(queue, b"")
            await consumption.aclose()

    asyncio.run(asyncio.wait_for(work(), 120))
    assert served.root.stats(queue).ready == 1


def test_what_a_loop_had_fetched_is_not_handed_out_once_its_key_is_over(served: Served) -> None:
    queue = served.queue("fetched")
    served.root.enqueue_many(queue, [NewMessage(b"%d" % at) for at in range(10)])
    client, key = served.client(f"consume:{queue}")
    with client:
        consumption = client.consume(queue, prefetch=8)
        next(consumption)
        wait_until(lambda: served.root.stats(queue).leased >= 8)
        served.root.keys.revoke(key.info.id)
        with pytest.raises(errors.Unauthenticated):
            next(consumption)
        consumption.close()
    # Never started: when they run out it counts as a release.
    assert {info.attempts for info in served.root.peek(queue, where="leased", limit=100)} == {0}


def test_rights_that_are_given_and_taken_count_from_the_next_call_on(served: Served) -> None:
    queue = served.queue("given")
    client, key = served.client()
    with client:
        for right in (None, Right.PRODUCE, Right.ADMIN, None, Right.PRODUCE):
            served.root.keys.set_grants(key.info.id, [f"{right}:{queue}"] if right else [])
            if right is Right.PRODUCE:
                client.enqueue(queue, b"")
            else:
                with pytest.raises(errors.Forbidden):
                    client.enqueue(queue, b"")
            if right is Right.ADMIN:
                client.pause(queue)
            else:
                with pytest.raises(errors.Forbidden):
                    client.pause(queue)


def test_every_verb_of_a_client_ends_when_its_key_is_revoked(served: Served) -> None:
    key = served.root.keys.create("all-powerful", list(map(str, EVERY_RIGHT)))
    face = ClientFace(served.server.address, key.secret)
    thing = furnish(served.root, "shop/revoked", "/nowhere/at/all")
    assert face.stats(thing.queue).ready
    served.root.keys.revoke(key.info.id)
    codes = {name: outcome_at(face, row.call, thing).error for name, row in TABLE.items()}
    assert codes == dict.fromkeys(TABLE, "unauthenticated")
    face.close()


# Calls that go together


def test_of_calls_that_a_client_gathers_only_those_that_are_refused_fail(served: Served) -> None:
    mine, theirs = served.queue("gather/mine"), served.queue("gather-theirs/queue")
    client, _ = served.client("produce:gather/*", "consume:gather/*")
    with client, ThreadPoolExecutor(32) as threads:
        barrier = threading.Barrier(32)

        def enqueue(number: int) -> str:
            barrier.wait()
            queue = (mine, theirs, "gather/nothing", "gather-theirs/nothing")[number % 4]
            try:
                client.enqueue(queue, b"%d" % number)
            except errors.FairleadError as refused:
                return f"{refused.code} {refused.fields.get('queue')}"
            return ""

        said = list(threads.map(enqueue, range(32)))
    expected = [
        "",
        f"forbidden {theirs}",
        "queue_not_found gather/nothing",
        "forbidden gather-theirs/nothing",
    ]
    assert said == expected * 8
    assert [served.root.stats(queue).ready for queue in (mine, theirs)] == [8, 0]


def test_of_settlements_that_a_client_gathers_those_of_others_are_not_found(served: Served) -> None:
    mine, theirs = served.queue("settle/mine"), served.queue("settle-theirs/queue")
    for queue in (mine, theirs):
        served.root.enqueue_many(queue, [NewMessage(b"")] * 16)
    client, _ = served.client("consume:settle/*")
    with client, ThreadPoolExecutor(32) as threads:
        own, foreign = client.claim(mine, limit=16), served.root.claim(theirs, limit=16)
        pairs = [delivery for pair in zip(own, foreign, strict=True) for delivery in pair]
        outcomes = list(threads.map(lambda delivery: client.settle([Complete(delivery)])[0].outcome, pairs))
    assert outcomes == ["completed", "not_found"] * 16
    assert [served.root.stats(queue).leased for queue in (mine, theirs)] == [0, 16]
