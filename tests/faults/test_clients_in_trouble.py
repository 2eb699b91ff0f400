"""Client processes that are paused or killed while they hold messages."""

from __future__ import annotations

import pytest

from fairlead import Client, Complete, FailureReason, NewMessage
from fairlead.testing import ServerProcess

from .processes import ClientProcess, until


@pytest.mark.parametrize("heartbeat", [True, False], ids=["with heartbeats", "without"])
def test_a_consumer_paused_beyond_its_lease_loses_it_and_is_told(
    server: ServerProcess, client: Client, heartbeat: bool
) -> None:
    client.create_queue("q", visibility_timeout="1s")
    message_id = client.enqueue("q", b"")
    with ClientProcess("hold", address=server.address, queue="q", heartbeat=heartbeat) as paused:
        assert paused.hear() == {"id": message_id, "attempts": 0}
        paused.pause()
        (delivery,) = client.claim("q", wait="60s")
        assert (delivery.id, delivery.attempts) == (message_id, 1)
        paused.resume()
        paused.tell()
        assert paused.hear() == {"known": heartbeat, "outcome": "lost_lease", "lost": True}
        # Its late settle has changed nothing for the one who holds the message now.
        assert client.settle([Complete(delivery)])[0].outcome == "completed"
        paused.finish()


def test_heartbeats_keep_a_lease_while_the_process_lives(server: ServerProcess, client: Client) -> None:
    """Or the pause in the tests above would prove nothing."""
    client.create_queue("q", visibility_timeout="1s")
    client.create_queue("clock", visibility_timeout="1s")
    client.enqueue("q", b"")
    with ClientProcess("hold", address=server.address, queue="q", heartbeat=True) as holder:
        holder.hear()
        # Leases of the other queue, claimed later and not kept alive, run out twice.
        client.enqueue("clock", b"")
        client._core.heartbeat.close()
        for attempts in (0, 1, 2):
            (delivery,) = client.claim("clock", wait="60s")
            assert delivery.attempts == attempts
        assert client.stats("q").leased == 1


def test_of_a_killed_client_only_what_it_had_started_counts_as_tried(
    server: ServerProcess, client: Client
) -> None:
    client.create_queue("q", visibility_timeout="1s")
    ids = client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(10)])
    with ClientProcess("prefetch", address=server.address, queue="q", prefetch=10) as victim:
        started = victim.hear()["id"]
        until(lambda: client.stats("q").leased == len(ids), "its buffer being full")
        victim.kill()
        attempts: dict[str, int] = {}
        while len(attempts) < len(ids):
            attempts |= {
                delivery.id: delivery.attempts for delivery in client.claim("q", limit=10, wait="60s")
            }
    assert started == ids[0]
    assert attempts == {message_id: int(message_id == started) for message_id in ids}
    # Unordered, a failed try goes to the tail; what was only waiting keeps its place.
    assert [*attempts] == [*ids[1:], started]


def test_a_message_that_kills_its_workers_ends_as_a_dead_letter(
    server: ServerProcess, client: Client
) -> None:
    client.create_queue("q", visibility_timeout="500ms", retry={"policy": "immediate", "attempts": 2})
    message_id = client.enqueue("q", b"")
    for _ in range(2):
        with ClientProcess("prefetch", address=server.address, queue="q", prefetch=10) as victim:
            assert victim.hear()["id"] == message_id
            victim.kill()
    (dead,) = client.claim("q.dlq", wait="60s")
    assert (dead.id, [FailureReason(failure.reason) for failure in dead.failures]) == (
        message_id,
        [FailureReason.TIMEOUT_EXCEEDED] * 2,
    )
