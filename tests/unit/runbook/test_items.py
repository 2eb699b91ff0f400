"""Items: a JSON object merged with variables and defaults, in one canonical form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ItemInvalid
from fairlead.runbook.items import canonical, make_item, read_variables
from fairlead.runbook.model import QueueSpec

ORDERS = QueueSpec("orders", vars=("customer", "amount"), defaults={"amount": 1})


def fields(queue: QueueSpec, data: str | None, **variables: object) -> object:
    return json.loads(make_item(queue, "orders", data, variables).payload)


def test_variables_come_over_the_data_and_defaults_fill_in() -> None:
    assert fields(ORDERS, '{"customer": "ann"}') == {"customer": "ann", "amount": 1}
    assert fields(ORDERS, '{"customer": "ann", "amount": 2}') == {"customer": "ann", "amount": 2}
    assert fields(ORDERS, '{"customer": "ann", "amount": 2}', amount=3, note="x") == {
        "customer": "ann",
        "amount": 3,
        "note": "x",
    }
    assert fields(ORDERS, None, customer="bob") == {"customer": "bob", "amount": 1}


def test_everything_that_is_missing_is_named_with_what_may_have_been_meant() -> None:
    queue = QueueSpec("orders", vars=("customer", "amount", "city"))
    with pytest.raises(ItemInvalid) as refused:
        make_item(queue, "shop/orders", '{"custmer": "ann"}', {"amount": 1})
    assert refused.value.queue == "shop/orders"
    assert refused.value.problems == [
        "'customer' is missing; is 'custmer' a mistake for it?",
        "'city' is missing; give it with --var city=VALUE",
    ]


NO_OBJECT = [
    "",
    "  ",
    "no json",
    "{",
    "[1]",
    '"text"',
    "3",
    "null",
    "true",
    '{"a": NaN}',
    '{"a": 1e999}',
    '{"a": "\\ud800"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("data", NO_OBJECT)
def test_what_is_no_json_object_is_refused(data: str) -> None:
    with pytest.raises(ItemInvalid) as refused:
        make_item(QueueSpec("orders"), "orders", data, {})
    assert len(refused.value.problems) == 1


def test_a_variable_that_is_json_is_that_and_any_other_is_text() -> None:
    read = read_variables(
        "orders",
        ["a=12", "b=x=y", "c=", 'd="12"', "e=01", "f=true", "g=null", 'h={"x":[1]}', "i=NaN", "a=13"],
    )
    assert read == {
        "a": 13,
        "b": "x=y",
        "c": "",
        "d": "12",
        "e": "01",
        "f": True,
        "g": None,
        "h": {"x": [1]},
        "i": "NaN",
    }


def test_every_variable_that_is_none_is_named() -> None:
    with pytest.raises(ItemInvalid) as refused:
        read_variables("orders", ["good=1", "bad", "=x"])
    assert [("'bad'" in problem, "'=x'" in problem) for problem in refused.value.problems] == [
        (True, False),
        (False, True),
    ]


def test_equal_data_has_an_equal_key_however_it_was_written() -> None:
    first = make_item(ORDERS, "orders", '{"customer": "ann", "amount": 1}', {})
    second = make_item(ORDERS, "orders", '{ "amount":1 }', {"customer": "ann"})
    third = make_item(ORDERS, "orders", None, {"customer": "ann"})
    assert first == second == third
    assert make_item(ORDERS, "orders", '{"customer": "ann", "amount": 2}', {}).dedup_key != first.dedup_key
    assert make_item(ORDERS, "orders", '{"customer": "ann", "amount": "1"}', {}).dedup_key != first.dedup_key


def test_a_queue_that_takes_equal_data_twice_gives_no_key() -> None:
    assert make_item(QueueSpec("orders", dedupe=False), "orders", "{}", {}).dedup_key is None


texts = st.text(st.characters(codec="utf-8"), max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(st.dictionaries(texts, values, max_size=4))
def test_the_canonical_form_says_the_same_and_does_not_depend_on_the_order_of_keys(
    data: dict[str, object],
) -> None:
    raw = canonical(data)
    assert json.loads(raw) == data
    assert canonical(dict(reversed(data.items()))) == raw
    assert canonical(json.loads(raw)) == raw
