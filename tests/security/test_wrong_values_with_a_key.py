"""Wrong values of callers with a key pass through the guard before the engine sees them: they are refused as
the engine refuses them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fairlead.errors import BrokenInvariant, FairleadError, Forbidden
from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.access import Right
from fairlead.request import VERBS
from fairlead.wire.packed import decode_request
from tests.hostile.resp import hasty
from tests.hostile.test_arguments import RIGHT
from tests.hostile.values import NASTY
from tests.security.scene import Scene, opened

encode = msgspec.msgpack.encode

#: Expressions that take long to refuse are for the engine's own tests.
WRONG_VALUES = [value for value in NASTY if not (isinstance(value, dict) and "error_regex" in value)]
WRONG_VALUES += [{"header": 5}, {"header": {"a": 1}}, {"header": ["a"]}, {"header": []}, {"header": True}]
RIGHT_VALUES = {"key_id": "a" * 12, "grants": [], "path": "/nowhere", "dedup_key": "k", **RIGHT}


def callers(scene: Scene) -> dict[str, AdmittedCaller]:
    scene.broker.create_queue("q")
    scene.broker.create_queue("other")
    return {
        "no key": scene.local(),
        "all queues": scene.with_grants(*[f"{right}:*" for right in Right]),
        "one queue": scene.with_grants(*[f"{right}:q" for right in Right]),
        "another queue": scene.with_grants(*[f"{right}:other" for right in Right]),
    }


def refusal(call: Callable[[], object]) -> FairleadError | None:
    """Anything else that a call raises is a defect, and fails the test."""
    try:
        call()
    except BrokenInvariant:
        raise
    except FairleadError as refused:
        return refused
    return None


def ask(x: AdmittedCaller, verb: str, arguments: dict[str, Any]) -> object:
    """As the door that speaks Redis reads and carries out a request."""
    return x.do(hasty(decode_request(VERBS[verb].request, encode(arguments))))


HOT = {
    "enqueue": {"queue": "q", "payload": b"x"},
    "enqueue_many": {"queue": "q", "messages": [[b"x"]]},
    "settle": {"items": [[0, b"i" * 16, 1]]},
    "exchange": {"requests": []},
    "claim": {"queue": "q"},
}


@pytest.mark.parametrize("verb", HOT)
def test_no_wrong_value_of_a_hot_verb_is_more_than_refused(verb: str) -> None:
    right: dict[str, Any] = HOT[verb]
    with opened() as scene:
        by_name = callers(scene)
        for field, value in itertools.product(VERBS[verb].fields, WRONG_VALUES):
            fields = {**right, field: value}
            found = {who: refusal(functools.partial(ask, x, verb, fields)) for who, x in by_name.items()}
            assert type(found["all queues"]) is type(found["no key"]), (field, value)
            if found["no key"] is not None and found["one queue"] is not None:
                assert isinstance(found["one queue"], (type(found["no key"]), Forbidden)), (field, value)


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"checkpoint", *HOT}))
def test_no_wrong_value_of_a_verb_is_more_than_refused(verb: str) -> None:
    with opened() as scene:
        group, _, name = verb.rpartition(".")
        by_name = callers(scene)
        for x in (by_name["one queue"], by_name["another queue"]):
            target = getattr(x, group) if group else x
            names = list(inspect.signature(getattr(target, name)).parameters)
            right = {one: RIGHT_VALUES[one] for one in names if one in RIGHT_VALUES}
            for field, value in itertools.product(names, WRONG_VALUES):
                refused = refusal(functools.partial(ask, x, verb, {**right, field: value}))
                assert refused is None or (len(refused.message) < 4000 and "\x1b" not in refused.message), (
                    field,
                    value,
                )
                if verb == "delete_queue" and refused is None:
                    scene.broker.create_queue("q")
