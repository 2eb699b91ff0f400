"""The bounds that the table of verbs tells are those that the engine enforces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead.verbs  # noqa: F401 - fills the table
from fairlead import Broker, NewMessage, errors
from fairlead.fields import Field, fields_of
from fairlead.request import VERBS, Verb
from tests.integration.world import World

#: Values for the fields that must be given.
RIGHT: dict[str, Any] = {
    "queue": "q",
    "name": "q",
    "key": "k",
    "value": "v",
    "generation": 1,
    "number": 1,
    "up_to": 1,
    "items": [],
    "parts": ["p"],
    "stream": "s",
    "duration": "1m",
    "payload": b"x",
    "messages": [],
    "dedup_key": "d",
    "project": "",
    "text": "{}",
    "token": "t",
    "chunk": "c",
    "chunks": [],
    "consumer": "c",
    "session": "s",
    "grants": [],
}
#: What an error calls a field that has another name in the request.
TOLD_AS = {
    ("create_queue", "name"): "queue",
    ("keys.change_grants", "add"): "grants",
    ("keys.change_grants", "remove"): "grants",
}


def values_outside(field: Field) -> Iterator[tuple[str, object]]:
    meta = field.meta
    if meta.extra:
        yield "longest", f"{meta.extra['at_most_ms'] + 1}ms"
        if meta.extra["at_least_ms"]:
            yield "shortest", f"{meta.extra['at_least_ms'] - 1}ms"
    if meta.le is not None:
        yield "le", meta.le + 1
    if meta.ge is not None:
        yield "ge", meta.ge - 1
    if meta.gt is not None:
        yield "gt", meta.gt
    if meta.max_length is not None:
        yield "max_length", of_length(field, meta.max_length + 1)
    if meta.min_length is not None:
        yield "min_length", of_length(field, meta.min_length - 1)


def of_length(field: Field, length: int) -> object:
    if str in field.kinds:
        return "x" * length
    if bytes in field.kinds:
        return b"x" * length
    if field.name == "messages":
        return [NewMessage(b"x")] * length
    return [f"produce:q{number}" for number in range(length)]


CASES = [
    pytest.param(verb, field, value, id=f"{name}.{field.name}-{bound}")
    for name, verb in VERBS.items()
    for field in fields_of(verb.request)
    for bound, value in values_outside(field)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One for all cases: a request that is refused changes nothing."""
    world = World("memory", Path(tmp_path_factory.mktemp("bounds")))
    world.broker.create_queue("q")
    world.broker.consumers.register("q", "q")
    yield world.broker
    world.close()


@pytest.mark.parametrize(("verb", "field", "value"), CASES)
def test_a_value_outside_its_bounds_is_refused_by_the_name_of_its_field(
    broker: Broker, verb: Verb, field: Field, value: object
) -> None:
    right = RIGHT | {"key_id": broker.keys.create("k", ["produce:q"]).info.id}
    given = {one.name: right[one.name] for one in fields_of(verb.request) if one.required}
    with pytest.raises(errors.InvalidRequest) as refused:
        broker.do(verb.request(**given | {field.name: value}))
    assert refused.value.field == TOLD_AS.get((verb.name, field.name), field.name)


def test_the_table_tells_bounds() -> None:
    assert len(CASES) > 100


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"exchange"}))
def test_every_field_of_a_verb_has_a_description(verb: str) -> None:
    assert [
        field.name for field in fields_of(VERBS[verb].request) if not field.description.endswith(".")
    ] == []
