from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import Broker
from fairlead.errors import Unauthenticated
from fairlead.middleware.authenticate import Authenticate, Credentials
from fairlead.request import Caller, Request
from fairlead.testing import ManualClock, open_in_memory
from fairlead.verbs.dead_letters import Intents


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Iterator[Broker]:
    with open_in_memory(clock=clock) as broker:
        yield broker


def test_a_key_becomes_a_caller_with_its_id_and_name(broker: Broker) -> None:
    key = broker.keys.create("ann")
    caller = Credentials(broker.key_ring, lambda: None).caller(f"Bearer {key.secret}", "here", 9)
    assert (caller.key_id, caller.name, caller.source, caller.size) == (key.info.id, "ann", "here", 9)


def test_without_a_key_ring_everybody_is_anonymous_whatever_they_show() -> None:
    for authorization in (None, "Bearer x", ""):
        caller = Credentials(None, lambda: pytest.fail("refused")).caller(authorization, "here")
        assert (caller.key_id, caller.name) == (None, "anonymous")


@pytest.mark.parametrize("authorization", [None, "", "Basic eDp5", "Bearer x", "Bearer"])
def test_credentials_that_are_refused_are_counted(broker: Broker, authorization: str | None) -> None:
    refused = []
    with pytest.raises(Unauthenticated):
        Credentials(broker.key_ring, lambda: refused.append(1)).caller(authorization, "here")
    assert refused == [1]


def test_a_key_is_asked_for_again_at_each_request(broker: Broker, clock: ManualClock) -> None:
    asked: list[str | None] = []

    def engine(request: Request[object], caller: Caller) -> object:
        asked.append(caller.key_id)
        return None

    layer = Authenticate(engine, broker.key_ring)  # type: ignore[arg-type]
    revoked, expiring = broker.keys.create("a"), broker.keys.create("b", expires_in="1h")
    callers = [Caller(key.info.id, "x", "y") for key in (revoked, expiring)]
    for caller in callers:
        layer(Intents(), caller)
    broker.keys.revoke(revoked.info.id)
    clock.advance(seconds=3601)
    for caller in callers:
        with pytest.raises(Unauthenticated):
            layer(Intents(), caller)
    layer(Intents(), Caller(None, "anonymous", "y"))
    assert asked == [revoked.info.id, expiring.info.id, None]
