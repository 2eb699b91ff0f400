from __future__ import annotations

import logging
import threading

import pytest

from fairlead.client.outage import QUIET_MS, Outage
from fairlead.errors import Overloaded
from fairlead.testing import ManualClock
from tests.client.lossy import LossyRelay
from tests.client.scene import PATIENCE_S, Scene, until

BEGINNING = "no answer from the fairlead server at host:1, trying again: connection refused"
END = "the fairlead server at host:1 answers again"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outage(clock: ManualClock) -> Outage:
    return Outage("host:1", clock)


def test_a_server_that_is_away_is_told_of_once_and_its_return_too(
    outage: Outage, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        outage.met(ConnectionError("connection refused"))
        clock.advance(ms=QUIET_MS // 2)
    assert caplog.messages == [BEGINNING]
    outage.over()
    outage.over()
    assert caplog.messages == [BEGINNING, END]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_second_outage_is_told_of_again(
    outage: Outage, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        outage.met(ConnectionError("connection refused"))
        clock.advance(ms=QUIET_MS)
        outage.met(ConnectionError("connection refused"))
        outage.over()
    assert caplog.messages == [BEGINNING, END, BEGINNING, END]


def test_a_connection_that_is_soon_there_again_is_not_worth_a_word(
    outage: Outage, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        outage.met(ConnectionError("connection reset"))
        clock.advance(ms=QUIET_MS - 1)
        outage.over()
        clock.advance(ms=QUIET_MS)
    assert caplog.messages == []


def test_an_overloaded_server_is_not_away(
    outage: Outage, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        outage.met(Overloaded("calls", 1, 100))
        clock.advance(ms=QUIET_MS)
    assert caplog.messages == []


@pytest.mark.parametrize("verb", ["enqueue", "consume"])
def test_a_client_that_waits_for_its_server_says_so(
    scene: Scene, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with LossyRelay(scene.address) as relay:
        client = scene.client(clock=clock, address=relay.address)
        scene.broker.enqueue("q", b"there already")
        relay.refuse(20)
        call = threading.Thread(
            target=lambda: client.enqueue("q", b"") if verb == "enqueue" else next(client.consume("q"))
        )
        call.start()

        def over() -> bool:
            clock.advance(ms=100)
            return not call.is_alive()

        until(over, "an end of the call")
        call.join(PATIENCE_S)
        assert [message.partition(",")[0] for message in caplog.messages] == [
            f"no answer from the fairlead server at {relay.address}",
            f"the fairlead server at {relay.address} answers again",
        ]
