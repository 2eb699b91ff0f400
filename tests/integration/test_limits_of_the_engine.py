"""How many queues, keys of a queue and configuration values there may be: refused in time, and nothing is
stored.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import NewMessage, Settings, errors
from fairlead.testing.sizes import size
from tests.integration.world import World


def test_queues_beyond_the_limit_are_refused_until_one_is_deleted(tmp_path: Path) -> None:
    world = World("memory", tmp_path, Settings(max_queues=2))
    world.broker.create_queue("a")
    world.broker.create_queue("b")
    before = world.store.last_commit
    with pytest.raises(errors.LimitReached) as refused:
        world.broker.create_queue("c")
    assert (refused.value.what, refused.value.limit) == ("queues", 2)
    assert world.store.last_commit == before
    with pytest.raises(errors.QueueExists):
        world.broker.create_queue("a")
    world.broker.delete_queue("a")
    world.broker.create_queue("c")


def test_one_queue_cannot_use_up_the_keys_of_all(tmp_path: Path) -> None:
    world = World("memory", tmp_path, Settings(active_lanes=10, lanes_per_queue=3))
    world.broker.create_queue("q")
    world.broker.create_queue("other")
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "abc"])
    before = world.store.last_commit
    with pytest.raises(errors.TooManyLanes) as refused:
        world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "ad"])
    assert refused.value.limit == 3
    assert world.store.last_commit == before
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "abcabc"])
    world.broker.enqueue_many("other", [NewMessage(b"", fairness_key=key) for key in "def"])
    world.broker.purge("q")
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key=key) for key in "xyz"])


def test_configuration_has_so_many_keys_and_characters_and_a_set_key_can_be_set_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("config_keys"), 2)
    monkeypatch.setattr(size("config_characters"), 10)
    world = World("memory", tmp_path, Settings())
    config = world.broker.config
    config.set("a", "12345")
    config.set("b", "1")
    with pytest.raises(errors.LimitReached, match="2 configuration keys"):
        config.set("c", "1")
    config.set("b", "12345")
    with pytest.raises(errors.LimitReached, match="10 characters of configuration values"):
        config.set("a", "123456")
    config.set("a", "1")
    config.set("b", "123456789")
    config.delete("a")
    config.set("c", "1")
    assert config.list() == {"b": "123456789", "c": "1"}
