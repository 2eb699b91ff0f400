"""The order of the layers, and which verb passes which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Broker
from fairlead.decide.redact import Redaction
from fairlead.middleware.audit import Audit
from fairlead.middleware.authenticate import Authenticate
from fairlead.middleware.authorize import Authorize
from fairlead.middleware.limits import LimitsLayer
from fairlead.middleware.metrics import MetricsLayer
from fairlead.middleware.redact import Redact
from fairlead.middleware.stack import Layers
from fairlead.middleware.trace import Trace
from fairlead.model.access import Right
from fairlead.request import VERBS, Caller, Request
from fairlead.server.limits import Limits as DoorLimits
from fairlead.testing import open_in_memory
from fairlead.verbs.browse import Browse
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.queues import Pause

ORDER = [LimitsLayer, Authenticate, Authorize, Audit, Redact, Trace, MetricsLayer]
ALWAYS = [LimitsLayer, Authenticate, Authorize, MetricsLayer]
WITHOUT_KEYS = [LimitsLayer, MetricsLayer]


class Everything(Request[list[Any]], frozen=True):
    """A verb that every layer concerns."""

    verb_name = "everything"
    audited = True
    shows_messages = True


@pytest.fixture
def broker() -> Iterator[Broker]:
    with open_in_memory() as broker:
        yield broker


@pytest.fixture
def layers(broker: Broker) -> Layers:
    return Layers(broker, Redaction(), keys=True, limits=DoorLimits(), tracing=object())  # type: ignore[arg-type]


def kinds(handler: Any) -> list[type]:
    """From the outermost layer to the innermost."""
    found = []
    while type(handler) in ORDER:
        found.append(type(handler))
        handler = handler._inner
    return found


def test_the_layers_are_in_their_order_around_a_verb_that_has_all(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trace, "concerns", lambda kind: kind is Everything)
    assert kinds(layers.stack(Everything)) == ORDER


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_passes_some_of_the_layers_in_that_order(layers: Layers, name: str) -> None:
    passed = kinds(layers.stack(VERBS[name].request))
    assert passed == [layer for layer in ORDER if layer in passed]
    assert set(ALWAYS) <= set(passed)


def test_a_verb_passes_only_the_layers_that_concern_it(layers: Layers) -> None:
    assert kinds(layers.stack(Pause)) == [LimitsLayer, Authenticate, Authorize, Audit, MetricsLayer]
    assert Audit not in kinds(layers.stack(Enqueue))
    assert Redact in kinds(layers.stack(Browse))
    assert Audit not in kinds(layers.stack(Browse, audited=False))


def test_without_limits_redaction_and_tracing_these_layers_are_left_out(broker: Broker) -> None:
    assert kinds(Layers(broker, keys=True).stack(Browse)) == [Authenticate, Authorize, Audit, MetricsLayer]


def test_without_keys_only_audited_verbs_ask_for_rights(broker: Broker) -> None:
    layers = Layers(broker, limits=DoorLimits())
    assert kinds(layers.stack(Enqueue)) == WITHOUT_KEYS
    assert kinds(layers.stack(Pause)) == [LimitsLayer, Authorize, Audit, MetricsLayer]


def test_the_same_layers_around_another_engine_check_rights_and_count(broker: Broker) -> None:
    asked: list[Request[Any]] = []

    def engine(request: Request[Any], caller: Caller) -> Any:
        asked.append(request)
        return "an id"

    layers = Layers(broker, keys=True)
    around = layers.around(engine)
    may = broker.keys.create("may", ["produce:q"])
    may_not = broker.keys.create("may not", [f"{Right.CONSUME}:q"])
    wanted = Enqueue("q", b"x")
    assert around.handle(wanted, around.admit(f"Bearer {may.secret}", "x").caller) == "an id"
    with pytest.raises(Exception, match="produce"):
        around.handle(wanted, around.admit(f"Bearer {may_not.secret}", "x").caller)
    assert asked == [wanted]
    assert layers.requests["enqueue"].outcomes == {"ok": 1}
