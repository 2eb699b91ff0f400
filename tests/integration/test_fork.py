"""A process forked while a broker is open: the broker stays the parent's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import fairlead
from fairlead import Broker, Complete, errors
from fairlead.testing.engine import engine_lock
from tests.turns import turn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

VERBS: dict[str, Callable[[Broker], object]] = {
    "enqueue": lambda broker: broker.enqueue("q", b"from the child"),
    "claim": lambda broker: broker.claim("q", wait="1h"),
    "settle": lambda broker: broker.settle([]),
    "exchange": lambda broker: turn(broker, "ann", claim={"queue": "q"}),
    "stats": lambda broker: broker.stats("q"),
    "config": lambda broker: broker.config.list(),
}


def in_a_child(work: Callable[[], str]) -> str:
    """What the work says in a forked process that then ends at once."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def error_of(verb: Callable[[Broker], object], broker: Broker) -> str:
    try:
        return repr(verb(broker))
    except errors.FairleadError as error:
        return error.code


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_forked_child_is_told_that_the_broker_is_not_its_own(
    tmp_path: Path, verb: Callable[[Broker], object]
) -> None:
    with fairlead.open(tmp_path / "data", durability="os") as broker:
        broker.create_queue("q")
        message_id = broker.enqueue("q", b"")
        assert in_a_child(lambda: error_of(verb, broker)) == "broker_forked"
        (delivery,) = broker.claim("q", limit=5)
        assert delivery.id == message_id
    assert fairlead.verify(tmp_path / "data").ok


def test_a_fork_while_another_thread_has_the_lock_does_not_hang_the_child(tmp_path: Path) -> None:
    with fairlead.open(tmp_path / "data", durability="os") as broker, engine_lock(broker):
        assert in_a_child(lambda: error_of(lambda held: held.queues(), broker)) == "broker_forked"


def test_a_child_that_closes_the_inherited_broker_leaves_the_parents_open(tmp_path: Path) -> None:
    with fairlead.open(tmp_path / "data", durability="os") as broker:
        broker.create_queue("q")
        assert in_a_child(lambda: str(broker.close())) == "None"
        broker.enqueue("q", b"")
        assert broker.settle([Complete(broker.claim("q")[0])])[0].outcome == "completed"
    assert fairlead.verify(tmp_path / "data").ok
