"""Fairness that holds whatever happens in between: new weights and throttles, a kill, a poison message, a redrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from fairlead import Delivery, Fail, NewMessage, Release, Start
from fairlead.engine import cold
from fairlead.engine.broker import Broker
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock

WEIGHTS = {"a": 3, "b": 2, "c": 1}
QUANTUM = 2
ROUND = QUANTUM * sum(WEIGHTS.values())


@pytest.fixture(params=["in memory", "on disk"], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the backlog is."""
    if request.param == "on disk":
        for name, size in (("HOT_MESSAGES", 0), ("CACHED_MESSAGES", 0), ("WINDOW_MESSAGES", 3)):
            monkeypatch.setattr(cold, name, size)


def open_broker(data: DictionaryData | None = None) -> Broker:
    return Broker(DictionaryStore(data), clock=ManualClock())


def fill(broker: Broker, keys: Iterable[str], count: int, *, throttle_keys: Sequence[str] = ()) -> None:
    """A backlog of each key, with the weights of `WEIGHTS`."""
    for key in keys:
        message = NewMessage(
            b"", fairness_key=key, weight=WEIGHTS.get(key, 1), throttle_keys=tuple(throttle_keys)
        )
        broker.enqueue_many("q", [message] * count)


def shares(broker: Broker, count: int, *, limit: int) -> Counter[str]:
    """How many of the next `count` messages each key has, claimed in batches of `limit`."""
    keys: list[str] = []
    while len(keys) < count:
        claimed = broker.claim("q", limit=min(limit, count - len(keys)))
        assert claimed, "the backlog was long enough"
        keys += [delivery.fairness_key for delivery in claimed]
    return Counter(keys)


# Weights and throttles


@pytest.mark.parametrize("limit", [1, 5, 1000])
@pytest.mark.parametrize("claimed_before", range(5))
def test_a_changed_weight_holds_for_the_backlog_within_one_round(claimed_before: int, limit: int) -> None:
    broker = open_broker()
    broker.create_queue("q", quantum=QUANTUM)
    fill(broker, ("x", "y"), 200)
    shares(broker, claimed_before, limit=1)
    broker.config.set("weight:q:x", 4)
    round_with_both = QUANTUM * 2
    shares(broker, round_with_both, limit=limit)
    got = shares(broker, 10 * QUANTUM * 5, limit=limit)
    # The window may begin or end in the middle of a turn.
    assert abs(got["x"] - 10 * QUANTUM * 4) <= QUANTUM * 4
    assert abs(got["y"] - 10 * QUANTUM) <= QUANTUM


def test_a_new_throttle_holds_for_the_backlog_at_once_and_so_does_its_end() -> None:
    broker = open_broker()
    broker.create_queue("q")
    fill(broker, ("x", "y"), 20, throttle_keys=["t"])
    assert len(broker.claim("q", limit=4)) == 4
    broker.config.set("throttle:t:rate", 1)
    assert len(broker.claim("q", limit=100)) == 1, "one token"
    assert broker.claim("q", limit=100) == []
    broker.config.set("throttle:t:rate", 10)
    broker.clock.advance(seconds=1)  # type: ignore[attr-defined]
    assert len(broker.claim("q", limit=100)) == 10
    broker.config.delete("throttle:t:rate")
    assert len(broker.claim("q", limit=100)) == 25


# A kill


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("claimed_before", range(ROUND + 1))
def test_after_a_kill_in_a_round_the_shares_are_off_by_one_quantum_at_most(
    claimed_before: int, limit: int
) -> None:
    killed, unharmed = Counter[str](), Counter[str]()
    for is_killed, got in ((True, killed), (False, unharmed)):
        data = DictionaryData()
        broker = open_broker(data)
        broker.create_queue("q", quantum=QUANTUM)
        fill(broker, WEIGHTS, 200)
        got += shares(broker, claimed_before, limit=limit)
        if is_killed:
            # Nothing is written on the way out.
            broker.engine.stop_working()
            broker = open_broker(data)
        got += shares(broker, 5 * ROUND, limit=limit)
    for key, weight in WEIGHTS.items():
        assert abs(killed[key] - unharmed[key]) <= QUANTUM * weight, (killed, unharmed)


# A poison message


def attempts_of(deliveries: Iterable[Delivery]) -> dict[bytes, int]:
    return {delivery.payload: delivery.attempts for delivery in deliveries}


@pytest.mark.parametrize("stream", [None, "s"])
def test_neighbours_of_a_message_that_kills_its_worker_are_not_charged(stream: str | None) -> None:
    broker = open_broker()
    broker.create_queue("q", visibility_timeout="10s", max_attempts=3, retry="immediate")
    broker.enqueue_many(
        "q", [NewMessage(b"poison", stream=stream), *[NewMessage(b"%d" % n, stream=stream) for n in range(4)]]
    )
    for attempt in range(3):
        prefetched = broker.claim("q", limit=5, max_per_stream=5, started=False)
        counted = attempts_of(prefetched)
        assert counted.pop(b"poison") == attempt
        assert counted == {b"0": 0, b"1": 0, b"2": 0, b"3": 0}
        (poison,) = [one for one in prefetched if one.payload == b"poison"]
        broker.settle([Start(poison)])
        broker.clock.advance(seconds=11)  # type: ignore[attr-defined]
    assert [one.payload for one in broker.claim("q.dlq", limit=9)] == [b"poison"]
    assert attempts_of(broker.claim("q", limit=5, max_per_stream=5)) == {b"0": 0, b"1": 0, b"2": 0, b"3": 0}


def test_neighbours_that_are_given_back_after_a_failure_are_not_charged() -> None:
    broker = open_broker()
    broker.create_queue("q", max_attempts=1)
    broker.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(4)])
    poison, *others = broker.claim("q", limit=4, started=False)
    broker.settle([Fail(poison), *[Release(other) for other in others]])
    assert attempts_of(broker.claim("q", limit=4)) == {b"1": 0, b"2": 0, b"3": 0}
    assert broker.stats("q.dlq").ready == 1


# A redrive


def test_a_redriven_message_keeps_its_policy_key_stream_and_dead_letter_rule() -> None:
    data = DictionaryData()
    broker = open_broker(data)
    broker.create_queue(
        "q",
        retry={"policy": "fixed", "cooldown": "1h"},
        retry_in_stream={"policy": "fixed", "cooldown": "7s", "attempts": 2},
    )
    told = {"fairness_key": "k", "weight": 3, "throttle_keys": ("t",), "stream": "s"}
    broker.enqueue("q", b"x", headers={"h": "1"}, **told)  # type: ignore[arg-type]
    first = _die(broker)
    for life in range(3):
        assert broker.redrive("q").moved == 1
        if life == 1:
            broker.engine.stop_working()
            broker = open_broker(data)
        again = _die(broker)
        assert {name: getattr(again, name) for name in told} == told
        assert (again.id, again.headers, again.queue) == (first.id, {"h": "1"}, "q")


def _die(broker: Broker) -> Delivery:
    """Fail twice, by the policy of streams; the message is then dead by that rule."""
    (delivery,) = broker.claim("q")
    assert delivery.attempts == 0
    (result,) = broker.settle([Fail(delivery)])
    assert (result.outcome, result.rule) == ("retry", "retry_in_stream.fixed")
    broker.clock.advance(ms=6_999)  # type: ignore[attr-defined]
    assert broker.claim("q") == []
    broker.clock.advance(ms=1)  # type: ignore[attr-defined]
    (again,) = broker.claim("q")
    (result,) = broker.settle([Fail(again)])
    assert (result.outcome, result.rule) == ("dead", "retry_in_stream.fixed")
    return delivery
