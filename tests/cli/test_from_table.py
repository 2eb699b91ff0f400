"""Which verbs have commands, and what a command takes from the table."""

from __future__ import annotations

from typing import Any

import pytest

from docs.commands import leaf_commands
from fairlead.fields import fields_of
from fairlead.request import VERBS
from tests.cli.conftest import Commands

COMMANDS = dict(leaf_commands())
BY_VERB = {verb: COMMANDS[f"fairlead do {verb}"] for verb in VERBS}
MADE = {
    command.callback.verb_name: name
    for name, command in COMMANDS.items()
    if hasattr(command.callback, "verb_name") and not name.startswith("fairlead do ")
}
#: Verbs behind commands that are written by hand, because a view, a file or several verbs belong to them.
WRITTEN = {
    "explain": "explain",
    "explain_queue": "explain",
    "failure_metrics": "failures",
    "find": "queue inspect",
    "keys.set_grants": "key grant",
    "runbooks.get": "runbook show",
    "runbooks.save": "apply",
    "stats": "stats",
    "twin": "queue push",
}


def test_a_verb_has_at_most_one_command_for_people() -> None:
    assert not MADE.keys() & WRITTEN.keys()


def test_the_commands_written_by_hand_exist() -> None:
    assert {f"fairlead {name}" for name in WRITTEN.values()} <= set(COMMANDS)


@pytest.mark.parametrize("verb", MADE)
def test_a_command_made_from_a_verb_has_its_required_fields_as_arguments(verb: str) -> None:
    required = {field.name for field in fields_of(VERBS[verb].request) if field.required}
    # One message is typed as its payload.
    required -= {"messages"}
    assert required <= arguments_of(COMMANDS[MADE[verb]])


@pytest.mark.parametrize("verb", BY_VERB)
def test_the_command_of_every_verb_has_all_its_fields(verb: str) -> None:
    fields = fields_of(VERBS[verb].request)
    assert {field.name for field in fields if field.required} == arguments_of(BY_VERB[verb])
    given = {param.name for param in BY_VERB[verb].params if param.expose_value}
    assert {field.name for field in fields} == given


def arguments_of(command: Any) -> set[str]:
    return {param.name for param in command.params if param.param_type_name == "argument"}


def test_the_help_of_a_command_speaks_of_arguments_and_options_and_not_of_python(cli: Commands) -> None:
    told = cli.ok("queue", "release-stream", "--help").out
    assert "Let later messages of a stream pass" in told
    assert "Returns" not in told
    assert "Raises" not in cli.ok("config", "get", "--help").out


def test_an_optional_field_has_its_bounds_in_the_command(cli: Commands) -> None:
    refused = cli("queue", "drop", "orders", "--min-attempts", "-1")
    assert refused.code == 2
    assert "greater than or equal to 0" in refused.err
