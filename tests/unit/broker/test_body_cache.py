"""The cache of recent bodies stays within its bound, whatever comes and goes."""

from __future__ import annotations

from fairlead.broker.bodies import BodyCache
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message


def message(number: int, size: int = 100) -> Message:
    return Message(number.to_bytes(16, "big"), 1, pack_lane("k"), 1, b"", b"x" * size, 0, 1)


def test_it_keeps_what_fits_and_refuses_the_rest() -> None:
    cache = BodyCache(1200)
    messages = [message(number) for number in range(5)]
    cache.add(messages)
    kept = [cache.find(each.id) for each in messages]
    assert kept[:2] == messages[:2]
    assert kept[2:] == [None, None, None]


def test_what_is_dropped_makes_room() -> None:
    cache = BodyCache(1200)
    for number in range(1000):
        cache.add([message(number)])
        assert cache.find(message(number).id) is not None
        cache.drop([message(number).id, message(number).id, b"unknown"])
    cache.add([message(1), message(2)])
    assert cache.find(message(2).id) is not None


def test_a_body_larger_than_the_cache_is_let_pass() -> None:
    cache = BodyCache(1000)
    cache.add([message(1, 5000)])
    cache.add([message(2)])
    assert cache.find(message(1).id) is None
    assert cache.find(message(2).id) is not None


def test_clear_forgets_all() -> None:
    cache = BodyCache(1200)
    cache.add([message(1), message(2)])
    cache.clear()
    assert cache.find(message(1).id) is None
    cache.add([message(3), message(4)])
    assert cache.find(message(4).id) is not None
