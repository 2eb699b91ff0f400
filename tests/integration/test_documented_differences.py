"""Behaviour that pages describe, where no other test holds it."""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail
from fairlead.testing import CommitStep, ManualClock, open_in_memory
from fairlead.testing.steps import observe


@pytest.mark.parametrize(
    ("failure", "expected"), [({}, ("delayed", "", "waiting")), ({"dead": True}, ("buried", "", "ready"))]
)
def test_a_failure_is_one_fact_whether_the_message_waits_or_dies(
    failure: dict[str, bool], expected: tuple[str, str, str]
) -> None:
    steps: list[CommitStep] = []
    with open_in_memory(clock=ManualClock()) as broker:
        broker.create_queue("q", retry={"policy": "fixed", "cooldown": "1m"})
        broker.enqueue("q", b"body")
        (delivery,) = broker.claim("q")
        observe(broker, steps.append)
        broker.settle([Fail(delivery, **failure)])
    _, settled = steps
    assert [(change.what, change.move) for change in settled.changes()] == [("move", expected)]


def test_a_queue_keeps_completed_messages_as_long_as_its_option_says() -> None:
    clock = ManualClock()
    with open_in_memory(clock=clock) as broker:
        broker.create_queue("q", retain_completed="1h")
        broker.enqueue("q", b"body")
        (delivery,) = broker.claim("q")
        broker.settle([Complete(delivery)])
        assert broker.stats("q").done == 1
        clock.advance(ms=3_600_000)
        assert broker.stats("q").done == 0
