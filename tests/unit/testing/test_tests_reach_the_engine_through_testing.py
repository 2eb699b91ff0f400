"""The inside of the engine may be replaced: only its own tests may import it, all others go through
`fairlead.testing`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
#: Tests of the parts themselves, and the specifications that random runs are held against.
OF_THE_PARTS = (
    "unit",
    "conformance",
    "simulation",
    "crash/damage",
    "property/planned_queue.py",
    "doors/http/test_every_transition_is_counted.py",
)
INSIDE = re.compile(r"fairlead\.(engine|store|schedule|records\.facts)(\.\w+)*", re.ASCII)
#: These say by name which modules a process must not load, or which ones a fuzzer watches.
NAMES_MODULES = ("cli/test_imports.py", "hostile/guided.py")


def named_in(source: str) -> Iterator[str]:
    """Modules and members that the source imports, or names in full as `monkeypatch.setattr` takes them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def inside_of(source: str) -> list[str]:
    return sorted({name for name in named_in(source) if INSIDE.fullmatch(name)})


def test_no_test_but_those_of_its_parts_imports_the_inside_of_the_engine() -> None:
    found = {}
    for path in TESTS.rglob("*.py"):
        name = path.relative_to(TESTS).as_posix()
        if not name.startswith(OF_THE_PARTS) and name not in NAMES_MODULES:
            found[name] = inside_of(path.read_text())
    assert len(found) > 200
    assert {name: names for name, names in found.items() if names} == {}, "use fairlead.testing"


@pytest.mark.parametrize(
    "source",
    [
        "import fairlead.store",
        "import fairlead.engine.engine as engine",
        "from fairlead import engine",
        "from fairlead.engine.broker import Broker",
        "from fairlead.store.kv.rocks import RocksKeyValueStore",
        "from fairlead.records import facts as f",
        "from fairlead.records.facts import MessageMoved",
        "from fairlead.schedule import drr",
        "def test():\n    from fairlead.engine import operations",
        "patch.setattr('fairlead.engine.operations.STEP_MESSAGES', 3)",
    ],
)
def test_every_form_of_import_is_found(source: str) -> None:
    assert inside_of(source)


@pytest.mark.parametrize(
    "source",
    [
        "from fairlead import Broker, errors",
        "from fairlead.testing import Storage, laws",
        "from fairlead.decide.dead_filter import DeadFilter",
        "'see fairlead.engine for more'",
    ],
)
def test_the_rest_of_the_package_may_be_imported(source: str) -> None:
    assert inside_of(source) == []
