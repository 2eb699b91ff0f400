"""What follows a release, rule by rule."""

from __future__ import annotations

import pytest

from fairlead.decide.release import GiveBack, after_release
from fairlead.decide.retry import DeadLetter
from fairlead.model.queue import QueueConfig

PLAIN = {"in_stream": False, "keep_order": False, "is_dead": False}


def test_a_message_without_a_stream_is_given_back_and_no_rule_is_named() -> None:
    assert after_release(QueueConfig(), 1, **PLAIN) == GiveBack("")


def test_in_a_stream_a_release_asks_to_pass_unless_it_or_the_queue_keeps_order() -> None:
    in_stream = {**PLAIN, "in_stream": True}
    strict = QueueConfig(ordering="strict")
    assert after_release(QueueConfig(), 1, **in_stream) == GiveBack("", asks_to_pass=True)
    assert after_release(QueueConfig(), 1, **{**in_stream, "keep_order": True}) == GiveBack(
        "release.order_kept"
    )
    assert after_release(strict, 1, **in_stream) == GiveBack("release.order_kept")
    assert after_release(strict, 1, **PLAIN) == GiveBack(""), "strict is about streams"


@pytest.mark.parametrize("in_stream", [False, True])
def test_the_last_delivery_allowed_ends_in_the_dead_letters(in_stream: bool) -> None:
    config = QueueConfig(max_deliveries=3)
    how = {**PLAIN, "in_stream": in_stream}
    assert isinstance(after_release(config, 2, **how), GiveBack)
    for deliveries in (3, 4):
        decision = after_release(config, deliveries, **how)
        assert decision == DeadLetter(
            f"handed out {deliveries} times without being settled, the limit is 3", "max_deliveries"
        )
    assert isinstance(after_release(config, 4, **{**how, "is_dead": True}), GiveBack), (
        "a dead letter can be handed out any number of times"
    )
