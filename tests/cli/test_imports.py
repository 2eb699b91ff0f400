"""A command is used in loops, and most of a short one is imports: what it does not need, it does not bring."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead.cli
from fairlead.cli.groups import COMMAND_MODULES

_CLI = Path(fairlead.cli.__file__).parent


def modules_after(code: str) -> set[str]:
    """What a new process has imported once it has run this."""
    tell = "\nimport json, sys\nprint(json.dumps([name for name, module in sys.modules.items() if module is not None]))"
    ran = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def after_command(*args: str) -> set[str]:
    return modules_after(
        f"import sys\nsys.argv = {['fairlead', *args]!r}\nfrom fairlead.cli import main\ntry: main()\nexcept SystemExit: pass"
    )


def test_every_file_of_commands_is_in_the_table() -> None:
    # Those of `fairlead queue` that have a file of their own are registered there.
    of_queue = {"messages", "operators", "queue_show"}
    assert {
        path.stem for path in _CLI.glob("*.py") if "\ndef register(" in path.read_text()
    } - of_queue == set(COMMAND_MODULES.values())


def test_the_package_alone_brings_no_engine() -> None:
    assert {"fairlead.engine.broker", "rocksdict", "lupa", "pyarrow", "msgspec"}.isdisjoint(
        modules_after("import fairlead")
    )


def test_a_command_brings_its_own_file_and_not_those_of_the_others() -> None:
    found = {name.removeprefix("fairlead.cli.") for name in after_command("config", "list", "--help")}
    assert found & set(COMMAND_MODULES.values()) == {"config"}


def test_a_command_at_a_server_brings_no_engine_and_no_pyarrow() -> None:
    found = after_command("queue", "list", "--addr", "no address")
    assert "fairlead.client.client" in found
    assert {"fairlead.engine.broker", "rocksdict", "lupa", "pandas", "pyarrow"}.isdisjoint(found)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "as it is"])
def test_pyarrow_alone_leaves_pandas_out_of_its_lists_until_a_frame_is_asked_for(alone: bool) -> None:
    pytest.importorskip("pandas")
    code = "from fairlead.cli.arrow import import_arrow_alone; import_arrow_alone()\n" if alone else ""
    lists = code + "import pyarrow\npyarrow.array([1]), pyarrow.array(['a'], pyarrow.utf8())"
    assert ("pandas" in modules_after(lists)) is not alone
    assert "pandas" in modules_after(
        lists + "\nassert list(pyarrow.table({'a': [1]}).to_pandas()['a']) == [1]"
    )
