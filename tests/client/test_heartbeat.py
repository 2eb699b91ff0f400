from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from fairlead import Client
from fairlead.client.heartbeat import AT_ONCE, Heartbeat
from fairlead.clock import SystemClock
from fairlead.errors import ClientClosed, Forbidden, ServerUnreachable, Unauthenticated
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.model.message import Message
from fairlead.model.settle import Complete, Extend, Fail, Release, SettleResult
from fairlead.testing import ManualClock
from tests.client.lossy import LossyRelay
from tests.client.scene import PATIENCE_S, Scene, heartbeat_of, until

#: The server's clock is an hour behind: it must not matter.
SKEW_MS = 3_600_000


class Server:
    """Extends everything by 30 seconds, or by what it is asked for, unless it is told otherwise."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked: list[tuple[int, list[int], list[timedelta | None]]] = []
        self.outcomes: dict[int, str] = {}
        self.during: Callable[[], None] = lambda: None
        self.down = False

    def now_ms(self) -> int:
        return self.clock.now_ms() - SKEW_MS

    def extend(self, extends: Sequence[Extend]) -> tuple[list[SettleResult], int]:
        numbers = [item.delivery.raw_id[0] for item in extends]  # type: ignore[attr-defined]
        self.asked.append((self.clock.monotonic_ms(), numbers, [item.duration for item in extends]))  # type: ignore[misc]
        if self.down:
            raise ServerUnreachable("here", "down")
        self.during()
        results = []
        for item, number in zip(extends, numbers, strict=True):
            lease_ms = 30_000 if item.duration is None else round(item.duration.total_seconds() * 1000)  # type: ignore[union-attr]
            outcome: Any = self.outcomes.get(number, "extended")
            results.append(SettleResult(bytes([number]) * 16, outcome, lease_until=self.now_ms() + lease_ms))
        return results, self.now_ms()


class CountingClock(ManualClock):
    """Counts how often somebody began to wait, so that a test sees a thread come back from work."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, condition: threading.Condition, timeout_ms: int | None) -> None:
        self.waits += 1
        super().wait(condition, timeout_ms)


@pytest.fixture
def clock() -> CountingClock:
    return CountingClock()


@pytest.fixture
def server(clock: ManualClock) -> Server:
    return Server(clock)


@pytest.fixture
def heartbeat(server: Server, clock: ManualClock) -> Iterator[Heartbeat]:
    heartbeat = Heartbeat(put_in_line(server.extend), clock, cap_ms=600_000)
    yield heartbeat
    heartbeat.close()
    heartbeat.join()


def put_in_line(extend: Callable[[Sequence[Extend]], Any]) -> Callable[[Sequence[Extend]], Callable[[], Any]]:
    """As a client does: asked for now, carried out a little later."""
    return lambda extends: lambda: extend(extends)


def delivery(number: int, server: Server, *, claim_id: int = 7, lease_ms: int = 30_000) -> Delivery:
    message = Message(bytes([number]) * 16, 0, b"", 1, b"", b"", 0, 0)
    return Delivery(message, None, "q", claim_id, server.now_ms() + lease_ms, 1)


def raw(number: int) -> bytes:
    return bytes([number]) * 16


def lease(number: int, claim_id: int = 7) -> tuple[bytes, int]:
    return raw(number), claim_id


def asleep(heartbeat: Heartbeat, clock: ManualClock) -> bool:
    """Its thread has seen everything and waits for time to pass."""
    return heartbeat._changed in clock._waiting


def pass_time(heartbeat: Heartbeat, clock: CountingClock, ms: int) -> None:
    until(lambda: asleep(heartbeat, clock), "the heartbeat being asleep")
    before = clock.waits
    clock.advance(ms=ms)
    until(lambda: clock.waits > before and asleep(heartbeat, clock), "the heartbeat being asleep again")


def test_a_held_lease_is_extended_when_a_third_of_it_has_passed(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    heartbeat.hold([delivery(1, server), delivery(2, server)], server.now_ms())
    pass_time(heartbeat, clock, 9_999)
    assert server.asked == []
    for _ in range(3):
        pass_time(heartbeat, clock, 1)
        pass_time(heartbeat, clock, 9_999)
    assert [(at, sorted(numbers)) for at, numbers, _ in server.asked] == [
        (10_000, [1, 2]),
        (20_000, [1, 2]),
        (30_000, [1, 2]),
    ]


def test_what_is_settled_at_once_does_not_wake_it_each_time(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    heartbeat.hold([delivery(1, server)], server.now_ms())
    for _ in range(2):
        # The second time the thread finds nothing to wait for.
        pass_time(heartbeat, clock, 10_000)
        heartbeat.drop({7: {raw(1)}})
    turns = clock.waits
    for _ in range(20):
        with heartbeat._changed:
            heartbeat.hold([delivery(1, server)], server.now_ms())
            heartbeat.drop({7: {raw(1)}})
        # Long enough for a thread that was woken to turn round; one that was not sleeps on.
        threading.Event().wait(0.005)
    assert clock.waits - turns <= 1


def test_it_stops_at_the_cap(heartbeat: Heartbeat, server: Server, clock: CountingClock) -> None:
    heartbeat.hold([delivery(1, server)], server.now_ms())
    for _ in range(100):
        pass_time(heartbeat, clock, 10_000)
    assert server.asked[-1][0] == 590_000
    assert not heartbeat.holds(*lease(1))
    assert not heartbeat.is_lost(*lease(1))


def test_more_leases_than_fit_into_one_request_are_extended_by_several(
    heartbeat: Heartbeat, server: Server, clock: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.client.heartbeat.AT_ONCE", 3)
    heartbeat.hold([delivery(number, server) for number in range(1, 9)], server.now_ms())
    pass_time(heartbeat, clock, 10_000)
    assert [len(numbers) for _, numbers, _ in server.asked] == [3, 3, 2]
    assert sorted(number for _, numbers, _ in server.asked for number in numbers) == list(range(1, 9))


def test_a_request_of_extensions_is_no_larger_than_a_broker_takes() -> None:
    assert AT_ONCE <= MAX_BATCH_MESSAGES


def test_a_settled_delivery_is_extended_no_more(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    heartbeat.hold([delivery(1, server), delivery(2, server)], server.now_ms())
    assert heartbeat.drop({7: {raw(1), raw(9)}, 8: {raw(1)}}) == {7: {raw(1)}}
    pass_time(heartbeat, clock, 10_000)
    assert [numbers for _, numbers, _ in server.asked] == [[2]]


def test_a_lost_lease_is_remembered_and_left_alone(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    server.outcomes = {1: "lost_lease"}
    heartbeat.hold([delivery(1, server), delivery(2, server)], server.now_ms())
    pass_time(heartbeat, clock, 10_000)
    pass_time(heartbeat, clock, 10_000)
    assert heartbeat.is_lost(*lease(1))
    assert not heartbeat.is_lost(*lease(1, claim_id=8))
    assert not heartbeat.is_lost(*lease(2))
    assert [sorted(numbers) for _, numbers, _ in server.asked] == [[1, 2], [2]]


def test_what_is_settled_while_a_heartbeat_is_under_way_is_not_lost(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    server.outcomes = {1: "not_found"}
    server.during = lambda: (heartbeat.drop({7: {raw(1)}}), None)[1]
    heartbeat.hold([delivery(1, server)], server.now_ms())
    pass_time(heartbeat, clock, 10_000)
    assert len(server.asked) == 1
    assert not heartbeat.is_lost(*lease(1))


def test_a_settle_that_came_to_nothing_leaves_the_lease_held(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    heartbeat.hold([delivery(1, server)], server.now_ms())
    heartbeat.keep(heartbeat.drop({7: {raw(1)}}))
    pass_time(heartbeat, clock, 10_000)
    assert server.asked[0][1] == [1]


def test_an_extension_by_the_caller_is_not_cut_short(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    heartbeat.hold([delivery(1, server), delivery(2, server)], server.now_ms())
    heartbeat.keep({7: {raw(1)}}, lease_ms=300_000, asked=timedelta(minutes=5))
    for _ in range(10):
        pass_time(heartbeat, clock, 10_000)
    asked = [(at, durations) for at, numbers, durations in server.asked if 1 in numbers]
    assert [at for at, _ in asked] == [100_000]
    assert timedelta(minutes=5) in asked[0][1]


def test_a_server_that_is_away_is_asked_again(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    server.down = True
    heartbeat.hold([delivery(1, server)], server.now_ms())
    pass_time(heartbeat, clock, 10_000)
    server.down = False
    pass_time(heartbeat, clock, 1000)
    assert [at for at, _, _ in server.asked] == [10_000, 11_000]
    assert heartbeat.holds(*lease(1))


def test_a_defect_does_not_end_it(
    heartbeat: Heartbeat, server: Server, clock: CountingClock, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble() -> None:
        raise ZeroDivisionError

    server.during = stumble
    heartbeat.hold([delivery(1, server)], server.now_ms())
    pass_time(heartbeat, clock, 10_000)
    server.during = lambda: None
    pass_time(heartbeat, clock, 1000)
    assert [at for at, _, _ in server.asked] == [10_000, 11_000]
    assert heartbeat.holds(*lease(1))
    assert "in a way it should not" in caplog.text


@pytest.mark.parametrize("refusal", [Unauthenticated("the key was revoked"), Forbidden("consume", "q")])
def test_what_a_key_may_no_longer_hold_is_lost_and_not_asked_for_again(
    heartbeat: Heartbeat, server: Server, clock: CountingClock, refusal: Exception
) -> None:
    def refuse() -> None:
        raise refusal

    server.during = refuse
    heartbeat.hold([delivery(1, server), delivery(2, server)], server.now_ms())
    pass_time(heartbeat, clock, 10_000)
    assert [heartbeat.is_lost(*lease(number)) for number in (1, 2)] == [True, True]
    assert not heartbeat.holds(*lease(1))
    clock.advance(ms=100_000)
    assert len(server.asked) == 1
    server.during = lambda: None
    heartbeat.hold([delivery(3, server, claim_id=8)], server.now_ms())
    pass_time(heartbeat, clock, 10_000)
    assert heartbeat.holds(*lease(3, 8)), "a right that was given back counts for what is claimed with it"


def test_it_ends_with_its_client(heartbeat: Heartbeat, server: Server, clock: CountingClock) -> None:
    """Also when only the core was closed, as at the end of a program: it must not ask again and again."""

    def closed() -> None:
        raise ClientClosed

    server.during = closed
    heartbeat.hold([delivery(1, server)], server.now_ms())
    until(lambda: asleep(heartbeat, clock))
    clock.advance(ms=10_000)
    heartbeat.join()
    assert heartbeat._thread is not None
    assert not heartbeat._thread.is_alive()
    assert len(server.asked) == 1


def test_a_claim_that_is_repeated_is_held_once(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    for _ in range(2):
        heartbeat.hold([delivery(1, server), delivery(2, server)], server.now_ms())
    heartbeat.drop({7: {raw(1)}})
    pass_time(heartbeat, clock, 10_000)
    assert [numbers for _, numbers, _ in server.asked] == [[2]]


def test_a_lease_that_is_nearly_over_is_extended_soon(
    heartbeat: Heartbeat, server: Server, clock: CountingClock
) -> None:
    heartbeat.hold([delivery(1, server)], server.now_ms())
    until(lambda: asleep(heartbeat, clock))
    heartbeat.hold([delivery(2, server, claim_id=8, lease_ms=300)], server.now_ms())
    pass_time(heartbeat, clock, 100)
    assert [numbers for _, numbers, _ in server.asked] == [[2]]


def test_a_short_lease_wakes_a_heartbeat_that_sleeps_for_a_long_one() -> None:
    """On the system's clock: a manual one wakes everybody whenever it moves."""
    asked: list[int] = []

    def extend(extends: Sequence[Extend]) -> tuple[list[SettleResult], int]:
        asked.extend(item.delivery.raw_id[0] for item in extends)  # type: ignore[attr-defined]
        return [
            SettleResult(raw(number), "extended", lease_until=3_600_000) for number in asked[-len(extends) :]
        ], 0

    heartbeat = Heartbeat(put_in_line(extend), SystemClock(), cap_ms=7_200_000)
    server = Server(ManualClock())
    heartbeat.hold([delivery(1, server, lease_ms=3_600_000)], server.now_ms())
    until(lambda: heartbeat._wakes_ms < 1 << 62, "the heartbeat being asleep")
    heartbeat.hold([delivery(2, server, claim_id=8, lease_ms=60)], server.now_ms())
    until(lambda: asked, "the short one being extended")
    assert asked == [2]
    heartbeat.close()
    heartbeat.join()


def test_without_a_cap_nothing_is_kept_alive(server: Server, clock: CountingClock) -> None:
    heartbeat = Heartbeat(put_in_line(server.extend), clock, cap_ms=None)
    heartbeat.hold([delivery(1, server)], server.now_ms())
    heartbeat.keep({7: {raw(1)}})
    assert not heartbeat.holds(*lease(1))
    assert heartbeat._thread is None


def test_a_real_lease_outlives_its_timeout_while_it_is_held(scene: Scene) -> None:
    scene.broker.create_queue("short", visibility_timeout="2s", retry="none")
    client = scene.client()
    message_id = client.enqueue("short", b"")
    (claimed,) = client.claim("short")
    until(
        lambda: (scene.broker.find(message_id).lease_until or 0) > claimed.lease_until + 4000,
        "the lease being extended",
    )
    assert client.settle([Complete(claimed)])[0].outcome == "completed"


def test_a_real_lease_runs_out_when_heartbeats_are_off(scene: Scene) -> None:
    scene.broker.create_queue("short", visibility_timeout="100ms", retry="none")
    client = scene.client(heartbeat_cap_ms=None)
    client.enqueue("short", b"")
    (claimed,) = client.claim("short")
    until(lambda: scene.counts("short")[3] == 1, "the lease running out")
    assert client.settle([Complete(claimed)])[0].outcome == "lost_lease"


def test_a_client_is_told_of_a_lease_that_was_revoked(scene: Scene) -> None:
    scene.broker.create_queue("short", visibility_timeout="300ms")
    client = scene.client()
    message_id = client.enqueue("short", b"")
    (claimed,) = client.claim("short")
    assert not client.is_lost(claimed)
    scene.broker.hold("short", [message_id])
    until(lambda: client.is_lost(claimed), "the loss being noticed")


def holds(client: Client, claimed: Delivery) -> bool:
    return heartbeat_of(client).holds(claimed.message.id, claimed.claim_id)


@pytest.mark.parametrize("settle", [Complete, Fail, Release])
def test_a_settle_ends_the_heartbeat(scene: Scene, settle: Callable[[Delivery], Any]) -> None:
    client = scene.client()
    client.enqueue("q", b"")
    (claimed,) = client.claim("q")
    assert holds(client, claimed)
    assert client.settle([settle(claimed)])[0].ok
    assert not holds(client, claimed)


def test_a_settle_that_is_refused_keeps_the_heartbeat(scene: Scene) -> None:
    client = scene.client()
    client.enqueue("q", b"")
    (claimed,) = client.claim("q")
    assert client.settle([Fail(claimed, dead=True, retry_in="1s")])[0].outcome == "invalid"
    assert holds(client, claimed)


def test_an_extension_of_the_callers_own_is_repeated_at_its_length(scene: Scene) -> None:
    client = scene.client()
    client.enqueue("q", b"")
    (claimed,) = client.claim("q")
    client.settle([Extend(claimed, "1h")])
    (group,) = heartbeat_of(client)._held[claimed.claim_id]
    assert group.duration == timedelta(hours=1)


def test_leases_extended_together_are_held_together(scene: Scene) -> None:
    """A group for each made every later call look through all of them."""
    client = scene.client()
    for n in range(50):
        client.enqueue("q", b"%d" % n)
    deliveries = client.claim("q", limit=50)
    client.settle([Extend(delivery, "1m", progress=8) for delivery in deliveries])
    held = heartbeat_of(client)._held[deliveries[0].claim_id]
    assert [len(group.ids) for group in held] == [50]


def test_a_heartbeat_under_way_does_not_cut_an_extension_short(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made up before the caller extended the lease himself, and must not be carried out behind that."""
    scene.broker.create_queue("short", visibility_timeout="3s")
    with LossyRelay(scene.address) as relay:
        client = scene.client(address=relay.address)
        message_id = client.enqueue("short", b"")
        client.enqueue("q", b"")
        (other,) = client.claim("q")
        beats, extended = threading.Event(), threading.Event()
        shared = client._core.connections.shared
        queue = shared.queue

        def late(*command: Any) -> Any:
            if threading.current_thread().name == "fairlead-heartbeat" and not extended.is_set():
                beats.set()
                extended.wait(0.3)
            return queue(*command)

        monkeypatch.setattr(shared, "queue", late)
        (claimed,) = client.claim("short")
        assert beats.wait(PATIENCE_S)
        assert client.settle([Extend(claimed, "10m")])[0].outcome == "extended"
        extended.set()
        until(lambda: b"".join(relay.sent).count(b"FL.SETTLE") >= 2, "the heartbeat being sent too")
        client.settle([Complete(other)])
        assert (scene.broker.find(message_id).lease_until or 0) > claimed.lease_until + 500_000


def test_an_extension_and_a_complete_in_one_call_end_the_heartbeat(scene: Scene) -> None:
    scene.broker.create_queue("short", visibility_timeout="2s")
    client = scene.client()
    client.enqueue("short", b"")
    (claimed,) = client.claim("short")
    assert [result.outcome for result in client.settle([Extend(claimed, "1m"), Complete(claimed)])] == [
        "extended",
        "completed",
    ]
    assert not heartbeat_of(client).holds(claimed.message.id, claimed.claim_id)


def test_what_another_client_holds_is_not_kept_alive_by_an_extension(scene: Scene) -> None:
    client = scene.client()
    other = scene.client()
    client.enqueue("q", b"")
    (claimed,) = client.claim("q")
    assert other.settle([Extend(claimed)])[0].ok
    assert not holds(other, claimed)


def test_a_late_settle_says_that_the_lease_was_lost(scene: Scene) -> None:
    client = scene.client()
    message_id = client.enqueue("q", b"")
    (claimed,) = client.claim("q")
    scene.broker.hold("q", [message_id])
    assert client.settle([Complete(claimed)])[0].outcome == "lost_lease"
    assert client.is_lost(claimed)
