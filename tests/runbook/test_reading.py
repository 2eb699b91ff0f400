"""Where things stand in a file, and what each syntax refuses."""

from __future__ import annotations

import contextlib
import tomllib
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import RunbookInvalid
from fairlead.runbook.check import check_text
from fairlead.runbook.from_hcl import read_hcl
from fairlead.runbook.from_json import read_json
from fairlead.runbook.from_toml import read_toml
from fairlead.runbook.source import Node, Problems, bare
from tests.runbook.runbooks import runbooks
from tests.runbook.writers import to_hcl, to_json, to_toml
from tests.sampling import sampled

READERS = {"toml": read_toml, "hcl": read_hcl, "json": read_json}
WRITERS = {"toml": to_toml, "hcl": to_hcl, "json": to_json}


def tree_of(text: str, syntax: str) -> Node:
    problems = Problems()
    tree = READERS[syntax](text, "file", problems)
    assert not problems.errors, problems.errors
    assert tree is not None
    return tree


def line_of(tree: Node, *path: str | int) -> int | None:
    for key in path:
        tree = tree.value[key]
    return tree.line


def problem_of(text: str, syntax: str) -> tuple[int | None, str, str]:
    with pytest.raises(RunbookInvalid) as refused:
        check_text(text, syntax)
    _, line, path, what = refused.value.problems[0]
    return line, path, what


def test_toml_lines_of_everything_that_can_stand_in_a_file() -> None:
    text = '''# a comment with [brackets] and "quotes"
title = """
many = lines
""""
[a]
b.c = 1 # so
"q.r" = [ 1,
  [2, "]"], # ]
  { x = 'a#b', y.z = {} },
]
date = 2026-01-01 10:00:00
[[list]]
one = """x""\\""""
[[list]]
two = \'\'\'it\'s\'\'\'
[list.inner]
three = 3
[ a . "d e" ]
last = -1.5e3
'''
    tree = tree_of(text, "toml")
    assert bare(tree) == tomllib.loads(text)
    wanted = {
        ("title",): 2,
        ("a",): 5,
        ("a", "b", "c"): 6,
        ("a", "q.r"): 7,
        ("a", "q.r", 1): 8,
        ("a", "q.r", 1, 1): 8,
        ("a", "q.r", 2, "x"): 9,
        ("a", "q.r", 2, "y", "z"): 9,
        ("a", "date"): 11,
        ("list", 0, "one"): 13,
        ("list", 1): 14,
        ("list", 1, "two"): 15,
        ("list", 1, "inner", "three"): 17,
        ("a", "d e"): 18,
        ("a", "d e", "last"): 19,
    }
    assert {path: line_of(tree, *path) for path in wanted} == wanted


def test_hcl_lines_of_blocks_attributes_and_items() -> None:
    tree = tree_of(
        'queue "a" {\n  retry {\n    attempts = 3\n  }\n  vars = [\n    "x",\n    "y"]\n}\n\nqueue "b" {}\n',
        "hcl",
    )
    wanted = {
        ("queue", "a"): 1,
        ("queue", "a", "retry"): 2,
        ("queue", "a", "retry", "attempts"): 3,
        ("queue", "a", "vars", 1): 7,
        ("queue", "b"): 10,
    }
    assert {path: line_of(tree, *path) for path in wanted} == wanted


def test_json_lines_are_those_of_the_keys() -> None:
    tree = tree_of('{"a":\n  {"b": [1,\n 2], "c":\n\n 3}}', "json")
    assert [line_of(tree, *path) for path in (["a"], ["a", "b"], ["a", "b", 1], ["a", "c"])] == [1, 2, 3, 3]


@given(tree=runbooks(), seed=st.integers(0, 2**32), syntax=st.sampled_from(["toml", "hcl", "json"]))
@settings(max_examples=sampled(25, of=100), deadline=None)
def test_every_line_that_is_told_has_the_key_on_it(tree: dict[str, Any], seed: int, syntax: str) -> None:
    """Of a table in brackets and of the label of a block too; keys that are quoted appear with escapes, and
    are left out here.
    """
    text = WRITERS[syntax](tree, Random(seed))
    lines = text.split("\n")
    for kind in ("queue", "worker"):
        for name, table in tree_of(text, syntax).value.get(kind, Node({}, "")).value.items():
            assert name in lines[table.line - 1]
            for key, part in table.value.items():
                assert key in lines[part.line - 1]


@pytest.mark.parametrize(
    ("text", "syntax", "line", "path"),
    [
        ("[queue.a]\n[queue.b]\n[queue.a]\n", "toml", 3, "queue.a"),
        ("[queue.a]\nttl = '1s'\nttl = '1s'\n", "toml", 3, ""),
        ('queue "a" {}\nqueue "b" {}\nqueue "a" {}\n', "hcl", 3, "queue.a"),
        ('queue "a" {\n ttl = "1s"\n ttl = "2s"\n}\n', "hcl", 3, "queue.a.ttl"),
        ('queue "a" {\n retry { attempts = 1 }\n retry = "none"\n}\n', "hcl", 3, "queue.a.retry"),
        (
            'pipeline "p" {\n step "a" { run = "a:b" }\n step "a" { run = "a:b" }\n}\n',
            "hcl",
            3,
            "pipeline.p.step.a",
        ),
        ('{"queue": {"a": {},\n "b": {},\n "a": {}}}', "json", 3, "queue.a"),
        ('{"queue": {"a": {"ttl": "1s",\n "ttl": "1s"}}}', "json", 2, "queue.a.ttl"),
    ],
)
def test_a_name_defined_twice_is_refused_in_every_syntax(
    text: str, syntax: str, line: int, path: str
) -> None:
    assert problem_of(text, syntax)[:2] == (line, path)


@pytest.mark.parametrize(
    ("text", "syntax", "line"),
    [
        ("[queue.a]\nttl = \n", "toml", 2),
        ("a = '", "toml", 1),
        ('queue "a" {\n  ttl = \n}\n', "hcl", 2),
        ('queue "a" {\n', "hcl", 2),
        ("a = '1'\n", "hcl", 1),
        ('{"queue":\n {"a" 1}}', "json", 2),
        ('{"queue":\n', "json", 2),
    ],
)
def test_what_is_no_such_syntax_is_refused_with_a_line(text: str, syntax: str, line: int) -> None:
    found_line, _, what = problem_of(text, syntax)
    assert (found_line, what.startswith(f"expected {syntax.upper()}")) == (line, True)


@pytest.mark.parametrize(
    "expression",
    [
        "var.x",
        "1 + 2",
        'upper("a")',
        '"a ${var.x}"',
        "[for x in y : x]",
        "true ? 1 : 2",
        '"%{ if a }b%{ endif }"',
    ],
)
def test_hcl_that_is_not_data_is_refused_where_it_stands(expression: str) -> None:
    line, path, what = problem_of(f'queue "a" {{\n\n  ttl = {expression}\n}}\n', "hcl")
    assert (line, path) == (3, "queue.a.ttl")
    assert "a runbook is data" in what


def test_what_hcl_refuses_is_told_once() -> None:
    with pytest.raises(RunbookInvalid) as refused:
        check_text('queue "a" {\n  ttl = var.x\n}\n', "hcl")
    assert len(refused.value.problems) == 1


def test_hcl_texts() -> None:
    quoted = 'a = "x\\n\\u00e9\\U0001F600\\\\n $${y} %%{z} $5 100%"\n'
    tree = tree_of(
        quoted + "b = <<EOT\n two\n  lines \\n $${x}\nEOT\nc = <<-EOT\n    x\n      y\n  EOT\n", "hcl"
    )
    assert bare(tree) == {
        "a": "x\né😀\\n ${y} %{z} $5 100%",
        "b": " two\n  lines \\n ${x}\n",
        "c": "x\n  y\n",
    }


def test_hcl_numbers_and_words() -> None:
    assert bare(
        tree_of(
            'a = -5\nb = 1.5\nc = 2e3\nd = true\ne = null\nf = -0.5\ng = { 1 = 2, "x y" = 3, true = 4 }\n',
            "hcl",
        )
    ) == {
        "a": -5,
        "b": 1.5,
        "c": 2000.0,
        "d": True,
        "e": None,
        "f": -0.5,
        "g": {"1": 2, "x y": 3, "true": 4},
    }


_DEEP = "a = " + "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(("text", "syntax"), [(_DEEP, "toml"), (_DEEP, "hcl"), ("[" * 99999, "json")])
def test_what_is_nested_too_deeply_is_refused(text: str, syntax: str) -> None:
    assert problem_of(text, syntax)[2].startswith("expected")


@pytest.mark.parametrize("text", ["[1]", "3", '"queue"', "null", '{"queue": NaN}', "1" * 5000])
def test_json_that_is_no_runbook_is_refused(text: str) -> None:
    assert problem_of(text, "json")[2].startswith("expected")


@given(
    text=st.text(st.sampled_from("[]{}=\"'\\#.,:$%\n abq1-<"), max_size=60),
    syntax=st.sampled_from(["toml", "hcl", "json"]),
)
@settings(max_examples=sampled(100, of=400), deadline=None)
def test_no_text_does_more_than_be_refused(text: str, syntax: str) -> None:
    with contextlib.suppress(RunbookInvalid):
        check_text(text, syntax)
