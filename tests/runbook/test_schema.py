"""The schema for editors and the checker tell one story, as far as a schema can."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import RunbookInvalid
from fairlead.model.queue import QUEUE_OPTIONS
from fairlead.runbook.check import check_text
from fairlead.runbook.keys import HOOK_KEYS, OPTION_KEYS, runbook_schema
from tests.runbook.json_schema import accepts
from tests.runbook.runbooks import runbooks
from tests.sampling import sampled

SCHEMA = runbook_schema()

#: What the checker may say that a schema cannot: references, contradictions between places, sizes and lengths
#: in words, files.
ONLY_THE_CHECKER = (
    "there is no ",
    "not in vars",
    "has no field",
    "a fixed program",
    "got nothing",
    "again",
    "at least",
    "at most",
    "cannot read",
    "to be a file",
    "without a NUL",
    "threads share",
    "for an external queue",
    "'.dlq'",
    "'.taken'",
    "between 0 and 10 years",
    "a queue name",
)

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    3,
    0.5,
    10**30,
    "",
    "x",
    "30s",
    "5 m",
    "30s\n",
    "none",
    "two words",
    "a:b",
    [],
    ["x"],
    [1],
    [None],
    {},
    {"x": 1},
    {"x": None},
    {"policy": "fixed"},
]
KEYS = [
    "retry",
    "type",
    "list",
    "command",
    "run",
    "stdin",
    "name",
    "step",
    "policy",
    "cooldown",
    "jitter",
    "oops",
]


@given(tree=runbooks())
@settings(max_examples=sampled(25, of=100), deadline=None)
def test_the_schema_accepts_what_the_checker_accepts(tree: dict[str, Any]) -> None:
    check_text(json.dumps(tree), "json")
    assert accepts(SCHEMA, tree)


@given(tree=runbooks(), seed=st.integers(0, 2**32))
@settings(max_examples=sampled(50, of=200), deadline=None)
def test_the_schema_refuses_what_the_checker_refuses_and_nothing_else(
    tree: dict[str, Any], seed: int
) -> None:
    """One place of a good runbook is spoiled, then both are asked."""
    _spoil(tree, Random(seed))
    try:
        check_text(json.dumps(tree), "json")
        complaints = []
    except RunbookInvalid as refused:
        complaints = [what for *_, what in refused.problems]
    for_a_schema = [what for what in complaints if not any(word in what for word in ONLY_THE_CHECKER)]
    if accepts(SCHEMA, tree):
        assert for_a_schema == []
    else:
        assert complaints


def _spoil(tree: dict[str, Any], chance: Random) -> None:
    places = list(_places(tree))
    parent, key = chance.choice(places)
    match chance.choice(["value", "value", "remove", "add", "rename"]):
        case "value":
            parent[key] = chance.choice(JUNK)
        case "remove":
            del parent[key]
        case "add" if isinstance(parent, dict):
            parent[chance.choice(KEYS)] = chance.choice(JUNK)
        case "rename" if isinstance(parent, dict):
            parent[chance.choice(["oops", "two words", "a/b"])] = parent.pop(key)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from _places(tree[key])


@pytest.mark.parametrize(
    ("queue", "good"),
    [
        ({"retry": {"attempts": 3, "cooldown": "30s"}}, True),
        ({"retry": "none"}, True),
        (
            {
                "retry": {
                    "policy": "exponential",
                    "base": "30s",
                    "cap": "1h",
                    "attempts": 10,
                    "jitter": "full",
                }
            },
            True,
        ),
        ({"retry": {"base": "30s"}}, False),
        ({"retry": {"attempts": 3, "jitter": "full"}}, False),
        ({"type": "external", "list": ["a"], "take": ["b"]}, True),
        ({"type": "external", "list": ["a"], "take": ["b"], "retry": "none"}, False),
        ({"list": ["a"]}, False),
        ({"visability_timeout": "2m"}, False),
    ],
)
def test_the_schema_knows_the_cases_of_the_issue(queue: dict[str, Any], good: bool) -> None:
    assert accepts(SCHEMA, {"queue": {"orders": queue}}) is good


@pytest.mark.parametrize(
    ("step", "good"),
    [
        ({"name": "a", "run": "a:b"}, True),
        ({"name": "a", "command": ["x"], "stdin": "none", "env": {"A": "{b}"}}, True),
        ({"name": "a", "run": "a:b", "stdin": "none"}, False),
        ({"name": "a", "run": "a:b", "env": {}}, False),
        ({"name": "a", "run": "a:b", "batch": True, "batch_size": 10_000}, True),
        ({"name": "a", "run": "a:b", "batch": False}, True),
        ({"name": "a", "run": "a:b", "batch": "yes"}, False),
        ({"name": "a", "run": "a:b", "batch": True, "batch_size": 0}, False),
        ({"name": "a", "run": "a:b", "batch": True, "batch_size": 10_001}, False),
        ({"name": "a", "run": "a:b", "batch_size": 10}, False),
        ({"name": "a", "run": "a:b", "batch": False, "batch_size": 10}, False),
        ({"name": "a", "command": ["x"], "batch": True}, False),
        ({"name": "a", "run": "a:b", "command": ["x"]}, False),
        ({"name": "a"}, False),
        ({"run": "a:b"}, False),
        ({"name": "a", "run": "a.b"}, False),
        ({"name": "a", "command": []}, False),
    ],
)
def test_the_schema_and_the_checker_know_what_a_step_is(step: dict[str, Any], good: bool) -> None:
    tree = {"pipeline": {"p": {"steps": [step]}}}
    assert accepts(SCHEMA, tree) is good
    with contextlib.nullcontext() if good else pytest.raises(RunbookInvalid):
        check_text(json.dumps(tree), "json")


def test_every_option_of_the_engine_can_be_written_in_a_runbook() -> None:
    assert set(OPTION_KEYS) | set(HOOK_KEYS) | {"dedup"} == set(QUEUE_OPTIONS)


def test_the_schema_is_json() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
