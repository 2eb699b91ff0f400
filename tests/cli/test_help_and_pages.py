from __future__ import annotations

import re
import shlex
import sys

import pytest

from docs.commands import EXIT_CODES, leaf_commands
from fairlead.cli import main
from fairlead.cli.repair import SAVED_IN_PART
from fairlead.wire.statuses import STATUSES
from tests.cli.conftest import Commands
from tests.docs.pages import ROOT

COMMANDS = dict(leaf_commands())
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_each_of_its_options_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert re.match(r"[A-Z].+[.)]$", (command.help or "").split("\n\n")[0].replace("\n", " ")), (
        f"{name} lacks a sentence of help"
    )
    assert [param.name for param in command.params if not (param.help or "").strip()] == []


#: They have directories of their own.
WITHOUT_TARGET = ("fairlead serve", "fairlead restore", "fairlead verify", "fairlead repair")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WITHOUT_TARGET])
def test_every_command_takes_the_shared_options(name: str) -> None:
    options = {option for param in COMMANDS[name].params for option in param.opts}
    assert {"--addr", "--data", "--output", "-o"} <= options


def test_the_commands_of_the_issue_are_there() -> None:
    verbs = "create update list show inspect delete pause resume purge push quarantine peek "
    verbs += "retry drop bury hold unhold fail done drain prune release-stream"
    expected = [
        *(f"queue {verb}" for verb in verbs.split()),
        *(f"config {verb}" for verb in ("set", "get", "list", "unset")),
    ]
    expected += [
        "redrive",
        "explain",
        "stats",
        "failures",
        "top",
        "backup",
        "restore",
        "verify",
        "repair",
        "doctor",
        "serve",
    ]
    assert {f"fairlead {name}" for name in expected} <= set(COMMANDS)


def test_every_exit_code_of_the_table_of_errors_has_a_meaning() -> None:
    codes = {status.exit_code for status in STATUSES.values()}
    assert codes <= set(EXIT_CODES)
    assert SAVED_IN_PART not in codes, "a repair that failed must not look like one that saved a part"


def alike(text: str) -> str:
    """Ids, ages and padding differ from run to run."""
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "FULL", text)
    text = re.sub(r"(?m)^[0-9a-f]{8}\b", "ID", text)
    text = re.sub(r"\b\d+(m\d+)?(ms|s|m)\b(?! *\n? *retry)", "AGE", text)
    return re.sub(r" +", " ", text)


def test_the_console_blocks_of_the_how_to_print_what_it_says(cli: Commands) -> None:
    page = (ROOT / "docs/how-to/operate-from-the-shell.md").read_text()
    steps = [step for block in _CONSOLE.findall(page) for step in re.split(r"(?m)^\$ ", block) if step]
    assert len(steps) > 10
    for step in steps:
        line, _, expected = step.partition("\n")
        name, *args = shlex.split(line)
        assert name == "fairlead"
        assert alike(cli.ok(*args).out) == alike(expected), line


@pytest.mark.parametrize("group", [(), ("queue",), ("worker",)], ids=["fairlead", "queue", "worker"])
def test_a_group_alone_shows_its_help_as_lines(
    group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fairlead", *group])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.splitlines()[0] == f"Usage: {' '.join(('fairlead', *group))} [OPTIONS] COMMAND [ARGS]..."
    assert "\\n" not in said
