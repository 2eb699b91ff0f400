"""The runtime configuration: text by key, persisted, live; throttles and weights are checked before they are
stored.
"""

from __future__ import annotations

import pytest

from fairlead import errors
from tests.integration.world import World


def test_what_is_set_can_be_read_listed_and_deleted(world: World) -> None:
    config = world.broker.config
    for key, value in (("b", "2"), ("a:y", "ü"), ("a:x", "")):
        config.set(key, value)
    assert (config.get("b"), config.get("a:y"), config.get("a:x")) == ("2", "ü", "")
    assert list(config.list().items()) == [("a:x", ""), ("a:y", "ü"), ("b", "2")]
    assert config.list("a:") == {"a:x": "", "a:y": "ü"}
    assert config.list("nothing") == {}
    config.set("b", "3")
    config.delete("a:x")
    assert config.list() == {"a:y": "ü", "b": "3"}


def test_a_key_that_is_not_set_is_named(world: World) -> None:
    for verb in (world.broker.config.get, world.broker.config.delete):
        with pytest.raises(errors.ConfigKeyNotFound) as missing:
            verb("a")
        assert missing.value.key == "a"
    world.broker.config.set("a:b", "1")
    with pytest.raises(errors.ConfigKeyNotFound):
        world.broker.config.get("a")


def test_the_configuration_survives_a_restart(world: World) -> None:
    world.broker.config.set("a", "1")
    world.broker.config.set("b", "2")
    world.broker.config.delete("a")
    world.restart()
    assert world.broker.config.list() == {"b": "2"}


def test_numbers_are_taken_as_their_text(world: World) -> None:
    config = world.broker.config
    config.set("a", 5)
    config.set("b", 0.5)
    assert config.list() == {"a": "5", "b": "0.5"}


BAD = [
    ("throttle:api:rate", value, "throttle:api:rate")
    for value in ("", "fast", "-1", "nan", "inf", "-inf", "1e10", "1,5", -0.1, float("nan"), float("inf"))
]
BAD += [
    ("throttle:api:burst", value, "throttle:api:burst") for value in ("0", "0.5", "-1", "", "nan", "lots")
]
BAD += [
    ("weight:q:a", value, "weight:q:a")
    for value in ("0", "1001", "-1", "1.5", "", "many", "٣", 0, 2.0, "9" * 5000)
]
BAD += [
    ("throttle:api", "1", "key"),
    ("throttle::rate", "1", "key"),
    ("throttle:api:speed", "1", "key"),
    ("throttle:", "1", "key"),
    ("weight:q", "1", "key"),
    ("weight:q:", "1", "key"),
    ("weight:no such queue!:a", "1", "queue"),
    ("weight::a", "1", "queue"),
    ("", "1", "key"),
    (5, "1", "key"),
    ("x" * 1025, "1", "key"),
    ("\ud800", "1", "key"),
    ("a", None, "value"),
    ("a", True, "value"),
    ("a", b"1", "value"),
    ("a", "x" * 65_537, "value"),
    ("a", "\ud800", "value"),
]


@pytest.mark.parametrize(("key", "value", "field"), BAD, ids=lambda given: repr(given)[:30])
def test_a_bad_key_or_value_is_refused_by_name_and_not_stored(
    world: World, key: str, value: str, field: str
) -> None:
    before = world.store.last_commit
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.config.set(key, value)
    assert refused.value.field == field
    assert "expected" in str(refused.value)
    assert (world.store.last_commit, world.broker.config.list()) == (before, {})


def test_a_refused_throttle_leaves_the_one_in_force_alone(world: World) -> None:
    world.broker.config.set("throttle:api:rate", "2")
    with pytest.raises(errors.InvalidRequest):
        world.broker.config.set("throttle:api:rate", "fast")
    (bucket,) = world.broker.stats("q").throttles
    assert (bucket.rate, world.broker.config.get("throttle:api:rate")) == (2, "2")


def test_a_throttle_key_may_have_colons_and_does_not_touch_its_neighbours(world: World) -> None:
    world.broker.config.set("throttle:a:rate", 1)
    world.broker.config.set("throttle:a:b:rate", 2)
    world.broker.config.delete("throttle:a:rate")
    assert [(bucket.key, bucket.rate) for bucket in world.broker.stats("q").throttles] == [("a:b", 2)]


def test_a_plain_key_touches_no_bucket(world: World) -> None:
    world.broker.config.set("throttled:api:rate", 1)
    assert world.broker.stats("q").throttles == ()


def test_a_rate_set_before_its_burst_starts_with_rate_tokens_and_the_burst_adds_none(world: World) -> None:
    world.broker.config.set("throttle:api:rate", 2)
    world.broker.config.set("throttle:api:burst", 10)
    (bucket,) = world.broker.stats("q").throttles
    assert (bucket.tokens, bucket.burst) == (2, 10)


def test_a_throttle_in_filas_spelling_is_a_throttle(world: World) -> None:
    config = world.broker.config
    config.set("throttle.api.eu", " 10 , 20.5 ")
    assert config.list("throttle") == {"throttle:api.eu:burst": "20.5", "throttle:api.eu:rate": "10"}
    assert config.get("throttle.api.eu") == "10,20.5"
    (throttle,) = world.broker.stats("q").throttles
    assert (throttle.key, throttle.rate, throttle.burst) == ("api.eu", 10, 20.5)
    config.delete("throttle:api.eu:burst")
    assert config.get("throttle.api.eu") == "10,10"
    config.delete("throttle.api.eu")
    assert (config.list("throttle"), world.broker.stats("q").throttles) == ({}, ())
    for call in (config.get, config.delete):
        with pytest.raises(errors.ConfigKeyNotFound):
            call("throttle.api.eu")


@pytest.mark.parametrize("value", ["", "10", "10,", ",5", "10,0", "-1,5", "10,5,5", "many,5"])
def test_a_throttle_in_filas_spelling_that_is_none_changes_nothing(world: World, value: str) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.config.set("throttle.api", value)
    assert refused.value.field == "throttle.api"
    with pytest.raises(errors.InvalidRequest):
        world.broker.config.set("throttle.", "1,1")
    assert world.broker.config.list("throttle") == {}
