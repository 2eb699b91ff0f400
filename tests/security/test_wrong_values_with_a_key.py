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
import pyarrow as pa
import pytest

from fairlead.errors import BrokenInvariant, FairleadError, Forbidden
from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.access import Right
from fairlead.server import answers
from fairlead.wire.calls import ClaimCall, EnqueueCall, ExchangeCall, SettleCall, decode
from fairlead.wire.records import record_verbs
from fairlead.wire.schemas import EXCHANGE
from tests.hostile.test_arguments import CALLS, RIGHT
from tests.hostile.values import NASTY
from tests.security.scene import Scene, opened

encode = msgspec.msgpack.encode
NO_ROWS = pa.RecordBatch.from_pylist([], schema=EXCHANGE)

#: Expressions that take long to refuse are for the engine's own tests.
WRONG_VALUES = [value for value in NASTY if not (isinstance(value, dict) and "error_regex" in value)]
WRONG_VALUES += [{"header": 5}, {"header": {"a": 1}}, {"header": ["a"]}, {"header": []}, {"header": True}]
RIGHT_VALUES = {"key_id": "a" * 12, "grants": [], "path": "/nowhere", "dedup_key": "k", **RIGHT}

HOT: dict[str, tuple[type[Any], Callable[[AdmittedCaller, bytes], object]]] = {
    "enqueue": (EnqueueCall, lambda x, raw: answers.enqueue(x, raw, None)),
    "settle": (SettleCall, lambda x, raw: answers.settle(x, raw, None)),
    "exchange": (ExchangeCall, lambda x, raw: answers.exchange(x, raw, NO_ROWS)),
    "claim": (ClaimCall, lambda x, raw: _claim(x, decode(raw, ClaimCall))),
}


def _claim(x: AdmittedCaller, call: ClaimCall) -> object:
    return list(answers.claim_by_credit(x, call)) if call.credit else answers.claim(x, call, call.limit, 0)


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
    return answers.request(x, encode({"verb": verb, "fields": encode(arguments)}), None)


@pytest.mark.parametrize("verb", HOT)
def test_no_wrong_value_of_a_hot_verb_is_more_than_refused(verb: str) -> None:
    kind, call = HOT[verb]
    right = dict(CALLS[verb][1])
    with opened() as scene:
        by_name = callers(scene)
        for field, value in itertools.product(kind.__struct_fields__, WRONG_VALUES):
            raw = encode({**right, field: value})
            found = {who: refusal(functools.partial(call, x, raw)) for who, x in by_name.items()}
            assert type(found["all queues"]) is type(found["no key"]), (field, value)
            if found["no key"] is not None and found["one queue"] is not None:
                assert isinstance(found["one queue"], (type(found["no key"]), Forbidden)), (field, value)


@pytest.mark.parametrize("verb", [verb for verb in record_verbs() if verb != "checkpoint"])
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
