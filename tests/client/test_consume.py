from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from fairlead import Client, Complete, Delivery, NewMessage, errors
from fairlead.testing.engine import is_started
from tests.client.lossy import LossyRelay
from tests.client.scene import PATIENCE_S, Scene, until


def fill(scene: Scene, count: int, queue: str = "q") -> list[str]:
    return scene.broker.enqueue_many(queue, [NewMessage(b"%d" % at) for at in range(count)])


def take(deliveries: Iterator[Delivery], count: int) -> list[Delivery]:
    return [next(deliveries) for _ in range(count)]


def test_a_loop_gets_every_message_in_order(scene: Scene, client: Client) -> None:
    ids = fill(scene, 250)
    seen = []
    for delivery in client.consume("q", prefetch=20):
        seen.append(delivery.id)
        client.settle([Complete(delivery)])
        if len(seen) == 250:
            break
    assert seen == ids
    assert scene.counts() == (0, 0, 0, 0)


def test_a_loop_waits_for_messages_that_come_later(scene: Scene, client: Client) -> None:
    deliveries = client.consume("q")
    threading.Timer(0.05, lambda: fill(scene, 1)).start()
    assert next(deliveries).payload == b"0"
    deliveries.close()


def test_only_what_was_handed_out_is_started(scene: Scene) -> None:
    """If this process died now, expiry would fail the first and release the rest."""
    client = scene.client()
    scene.broker.create_queue("short", visibility_timeout="10m", retry="none")
    ids = fill(scene, 5, "short")
    deliveries = client.consume("short", prefetch=10)
    next(deliveries)
    until(lambda: scene.counts("short")[2] == 5, "all being fetched")
    assert [is_started(scene.broker, message_id) for message_id in ids] == [True] + [False] * 4
    deliveries.close()


@pytest.mark.parametrize("how", ["break", "exception", "close", "with", "client"])
def test_leaving_a_loop_gives_the_rest_back_in_order(scene: Scene, how: str) -> None:
    client = scene.client()
    fill(scene, 10)
    if how == "break":
        for delivery in client.consume("q", prefetch=5):  # noqa: B007 - it is settled below
            until(lambda: scene.counts()[2] == 5)
            break
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            fail_inside(client)
        # The traceback that pytest keeps refers to the frame, and that to the loop, until it is let go.
        gc.collect()
    elif how == "with":
        with client.consume("q", prefetch=5) as deliveries:
            delivery = next(deliveries)
    else:
        deliveries = client.consume("q", prefetch=5)
        delivery = next(deliveries)
        (deliveries if how == "close" else client).close()
    until(lambda: scene.counts() == (9, 0, 1, 0), "the buffer being given back")
    assert scene.payloads() == [b"%d" % at for at in range(1, 10)]
    if how in ("break", "close", "with"):
        assert client.settle([Complete(delivery)])[0].ok


def fail_inside(client: Client) -> None:
    for _ in client.consume("q", prefetch=5):
        raise ZeroDivisionError


def test_what_was_in_a_buffer_counts_as_no_attempt(scene: Scene, client: Client) -> None:
    fill(scene, 3)
    with client.consume("q") as deliveries:
        next(deliveries)
        until(lambda: scene.counts()[2] == 3)
    assert [delivery.attempts for delivery in scene.broker.claim("q", limit=5)] == [0, 0]


def test_a_delivery_that_was_lost_in_the_buffer_is_skipped(scene: Scene, client: Client) -> None:
    ids = fill(scene, 3)
    deliveries = client.consume("q", prefetch=10)
    first = next(deliveries)
    until(lambda: scene.counts()[2] == 3)
    scene.broker.drop("q", [ids[1]])
    assert [first.id, next(deliveries).id] == [ids[0], ids[2]]
    deliveries.close()


def test_nothing_more_is_fetched_for_a_consumer_that_stands_still(scene: Scene, client: Client) -> None:
    fill(scene, 50)
    slow = client.consume("q", prefetch=10)
    next(slow)
    until(lambda: scene.counts()[2] == 10)
    quick = client.consume("q", prefetch=10)
    for delivery in take(quick, 30):
        client.settle([Complete(delivery)])
    assert client.stats("q").ready <= 10
    slow.close()
    quick.close()


def test_a_slow_consumer_keeps_its_leases(scene: Scene) -> None:
    scene.broker.create_queue("short", visibility_timeout="2s", retry="none")
    client = scene.client()
    ids = fill(scene, 4, "short")
    deliveries = client.consume("short", prefetch=10)
    first = next(deliveries)
    until(lambda: scene.counts("short")[2] == 4)
    for message_id in ids:
        until(
            lambda message_id=message_id: (
                (scene.broker.find(message_id).lease_until or 0) > first.lease_until + 4000
            )
        )  # type: ignore[misc]
    assert [client.settle([Complete(delivery)])[0].outcome for delivery in [first, *take(deliveries, 3)]] == [
        "completed"
    ] * 4
    deliveries.close()


def test_several_threads_share_one_loop(scene: Scene, client: Client) -> None:
    ids = fill(scene, 200)
    deliveries = client.consume("q", prefetch=20)
    seen: list[str] = []

    def work() -> None:
        for delivery in deliveries:
            client.settle([Complete(delivery)])
            seen.append(delivery.id)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    until(lambda: len(seen) == 200, "all being worked")
    deliveries.close()
    for worker in workers:
        worker.join(PATIENCE_S)
        assert not worker.is_alive()
    assert sorted(seen) == sorted(ids)


def test_runs_of_a_stream_are_fetched_when_asked_for(scene: Scene, client: Client) -> None:
    scene.broker.enqueue_many("q", [NewMessage(b"%d" % at, stream="s") for at in range(3)])
    deliveries = client.consume("q", max_per_stream=3)
    next(deliveries)
    until(lambda: scene.counts()[2] == 3, "the run being leased")
    deliveries.close()


def test_a_loop_over_several_queues(scene: Scene, client: Client) -> None:
    scene.broker.create_queue("r")
    fill(scene, 1, "q")
    fill(scene, 1, "r")
    deliveries = client.consume(["q", "r"])
    assert {delivery.queue for delivery in take(deliveries, 2)} == {"q", "r"}
    deliveries.close()


def test_a_loop_over_a_queue_that_is_not_there_says_so(client: Client) -> None:
    with pytest.raises(errors.QueueNotFound):
        next(client.consume("nowhere"))


def test_a_queue_deleted_under_a_loop_ends_it(scene: Scene, client: Client) -> None:
    fill(scene, 1)
    deliveries = client.consume("q")
    next(deliveries)
    scene.broker.delete_queue("q")
    with pytest.raises(errors.QueueNotFound):
        next(deliveries)


@pytest.mark.parametrize("prefetch", [0, -1, True, 1.5, "10", 100_001])
def test_a_prefetch_that_is_none_is_refused(client: Client, prefetch: int) -> None:
    with pytest.raises(errors.InvalidRequest):
        client.consume("q", prefetch=prefetch)


def test_a_start_that_cannot_be_confirmed_hands_nothing_out(scene: Scene) -> None:
    fill(scene, 2)
    with LossyRelay(scene.address) as relay:
        client = scene.client(address=relay.address, retry_for_ms=50)
        deliveries = client.consume("q")
        # The first one came started, because the loop waited for it.
        assert next(deliveries).payload == b"0"
        relay.lose(b"FL.SETTLE", 1000)
        with pytest.raises(errors.ServerUnreachable):
            next(deliveries)
        relay.lose(b"FL.SETTLE", 0)
        assert next(deliveries).payload == b"1"
        deliveries.close()


def test_a_loop_that_waits_ends_when_it_is_closed(scene: Scene, client: Client) -> None:
    deliveries = client.consume("q")
    ended = threading.Event()

    def wait() -> None:
        for _ in deliveries:
            pass
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    until(lambda: scene.broker.stats("q").consumers == 1, "the loop waiting")
    deliveries.close()
    assert ended.wait(PATIENCE_S)
    with pytest.raises(StopIteration):
        next(deliveries)


def test_leaving_a_loop_leaves_no_thread_behind(scene: Scene, client: Client) -> None:
    for _ in range(5):
        client.consume("q").close()
    until(
        lambda: not [thread for thread in threading.enumerate() if thread.name == "fairlead-consume"],
        "the threads ending",
    )


def test_a_message_that_arrives_while_the_loop_is_left_is_given_back_too(
    scene: Scene, client: Client
) -> None:
    for at in range(20):
        deliveries = client.consume("q", prefetch=100)
        sender = threading.Thread(target=lambda at=at: fill(scene, 5))  # type: ignore[misc]
        sender.start()
        first = next(deliveries)
        deliveries.close()
        sender.join()
        client.settle([Complete(first)])
        until(lambda: scene.counts()[2] == 0, "nothing being leased")
        assert scene.counts()[0] == 4 * (at + 1)
        time.sleep(0)
