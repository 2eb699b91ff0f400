"""Fingerprints of checks. Equal bad rows of one check are published once, so different checks must have
different fingerprints.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql.types import StructType

from fairlead.spark.bad_rows.quarantining import _function_text, _name_of

SCHEMA = StructType([])
Check = Callable[[Any], Any]


def told(check: Check) -> str:
    return _name_of("unknown", "words", check, SCHEMA)


def at_least(least: Any) -> Check:
    return lambda row: row["n"] >= least


def column_of(name: str, row: dict[str, Any], *, least: int = 0) -> bool:
    return bool(row[name] >= least)


class Limit:
    def __init__(self, least: int) -> None:
        self.least = least

    def __repr__(self) -> str:
        return f"Limit({self.least})"

    def check(self, row: dict[str, Any]) -> bool:
        return bool(row["n"] >= self.least)


PAIRS: dict[str, tuple[Check, Check]] = {
    "constants": (lambda row: row["a"] > 0, lambda row: row["b"] > 0),
    "operators": (lambda row: row["a"] > 0, lambda row: row["a"] < 0),
    "attributes": (lambda row: row.lower(), lambda row: row.upper()),
    "inner functions": (
        lambda row: any(one > 0 for one in row["a"]),
        lambda row: any(one < 0 for one in row["a"]),
    ),
    "defaults": (lambda row, n=1: row["a"] > n, lambda row, n=2: row["a"] > n),
    "keyword defaults": (lambda row, *, n=1: row["a"] > n, lambda row, *, n=2: row["a"] > n),
    "lines": (
        lambda row: row["a"],
        lambda row: row["a"],
    ),
    "values taken along": (at_least(1), at_least(2)),
    "functions taken along": (at_least(at_least(1)), at_least(at_least(2))),
    "arguments of a partial": (partial(column_of, "a"), partial(column_of, "b")),
    "keywords of a partial": (partial(column_of, "a", least=1), partial(column_of, "a", least=2)),
    "functions of a partial": (partial(lambda row: row["a"]), partial(lambda row: row["b"])),
    "objects of a method": (Limit(1).check, Limit(2).check),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_two_functions_are_two_checks(pair: tuple[Check, Check]) -> None:
    first, second = pair
    assert told(first) != told(second)
    assert told(first) == told(first)


def test_made_again_it_is_the_same_check() -> None:
    assert told(at_least(1)) == told(at_least(1))
    assert told(partial(column_of, "a", least=1)) == told(partial(column_of, "a", least=1))
    assert told(at_least(object())) == told(at_least(object())), "an address says nothing"


def test_a_function_that_calls_itself_ends() -> None:
    def depth(row: Any) -> int:
        return 1 + max(map(depth, row), default=0) if isinstance(row, list) else 0

    around: list[Any] = []
    around.append(around)
    assert told(depth) == told(depth) != told(at_least(around))


def test_a_value_that_is_not_there_yet_is_none() -> None:
    check = lambda row: later  # noqa: E731 - a def would have another name
    before = told(check)
    later = 1
    assert before != told(check)


def test_shown_is_the_name_alone() -> None:
    assert _function_text(PAIRS["constants"][0]) == f"{__name__}.<lambda>"
    assert _function_text(partial(column_of, "a")) == f"{__name__}.column_of"


PROGRAM = """
import json
from functools import partial
from fairlead.spark.bad_rows.fingerprint import fingerprint

class Plain: ...

def outer(*taken):
    def check(row, seen={"one", "two", "three", "four"}, **more):
        return row in {"five", "six", "seven", "eight"} or taken or [inner for inner in row]
    for row in range(5000):
        check(row)  # Python specialises code that runs often.
    return check

print(fingerprint(partial(outer(len, json, Plain(), Plain), more={"a": frozenset({"nine", "ten", "eleven"})})))
"""


def test_another_process_says_the_same() -> None:
    """Another process has other addresses, and another order of texts in a set."""

    def said(seed: str, program: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout

    first = said("1", PROGRAM)
    assert first == said("2", PROGRAM) == said("3", PROGRAM.replace("5000", "2"))
    assert "eleven" in first
    assert "0x" not in first
    assert "from '" not in first, "a module may be elsewhere on another machine"
