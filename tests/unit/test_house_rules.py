"""Rules of names and lines that hold in the whole source tree, so that no reviewer has to look for them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if "_pb2" not in path.name:
            yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return dict(modules())


def test_a_class_name_occurs_once_in_the_tree(trees: dict[str, ast.Module]) -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_the_names_of_bounds_begin_with_max_or_min(trees: dict[str, ast.Module]) -> None:
    found = [
        f"{path}:{node.lineno} {node.id}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id.lstrip("_").startswith(("MOST_", "LEAST_"))
    ]
    assert found == []


def test_no_conditional_expression_is_inside_another(trees: dict[str, ast.Module]) -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp)
        for part in (node.test, node.body, node.orelse)
        if isinstance(part, ast.IfExp)
    ]
    assert found == []
