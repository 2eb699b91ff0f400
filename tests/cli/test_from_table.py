"""Which verbs have commands, and what a command takes from the table."""

from __future__ import annotations

import pytest

from docs.commands import leaf_commands
from fairlead.fields import fields_of
from fairlead.request import VERBS
from tests.cli.conftest import Commands

COMMANDS = dict(leaf_commands())
MADE = {
    command.callback.verb_name: name
    for name, command in COMMANDS.items()
    if hasattr(command.callback, "verb_name")
}
#: Verbs behind commands that are written by hand, because a view, a file or several verbs belong to them.
WRITTEN = {
    "audit.read": "audit",
    "checkpoint": "backup",
    "drain": "queue drain",
    "enqueue_many": "queue push",
    "explain": "explain",
    "explain_queue": "explain",
    "failure_metrics": "failures",
    "find": "queue inspect",
    "keys.change_grants": "key grant",
    "keys.create": "key create",
    "keys.list": "key list",
    "keys.revoke": "key revoke",
    "keys.rotate": "key rotate",
    "keys.set_grants": "key grant",
    "keys.show": "key show",
    "peek": "queue peek",
    "prune": "queue prune",
    "quarantine": "queue quarantine",
    "queues": "queue list",
    "redrive": "redrive",
    "retry": "queue retry",
    "runbooks.get": "runbook show",
    "runbooks.save": "apply",
    "stats": "stats",
    "twin": "queue push",
}
_WORK = "a worker claims and settles; the command is `worker run`"
_NUMBERED = "only programs make numbered claims"
_STAGING = "only programs stage writes"
#: Why a verb has no command.
WITHOUT = {
    "ack": _WORK,
    "browse": "`queue show` and `queue peek` look at messages; whole queues are for Spark",
    "browse_splits": "whole queues are for Spark",
    "claim": _WORK,
    "consumers.ceiling": _NUMBERED,
    "consumers.choose": _NUMBERED,
    "consumers.claim": _NUMBERED,
    "consumers.close": _NUMBERED,
    "consumers.heartbeat": _NUMBERED,
    "consumers.read_pages": _NUMBERED,
    "consumers.record": _NUMBERED,
    "consumers.register": _NUMBERED,
    "consumers.take_up": _NUMBERED,
    "enqueue": "`queue push` uses enqueue_many",
    "exchange": _WORK,
    "goodbye": _WORK,
    "nack": _WORK,
    "runbooks.list": "`worker run` uses it for a hint; `runbook show` shows one project",
    "settle": _WORK,
    "staging.publish": _STAGING,
    "staging.stage": _STAGING,
}


def test_every_verb_has_a_command_or_a_reason_why_it_has_none() -> None:
    groups = (MADE.keys(), WRITTEN.keys(), WITHOUT.keys())
    assert sorted(name for group in groups for name in group) == sorted(VERBS)


def test_the_commands_written_by_hand_exist() -> None:
    assert {f"fairlead {name}" for name in WRITTEN.values()} <= set(COMMANDS)


@pytest.mark.parametrize("verb", MADE)
def test_a_command_made_from_a_verb_has_its_required_fields_as_arguments(verb: str) -> None:
    arguments = {param.name for param in COMMANDS[MADE[verb]].params if param.param_type_name == "argument"}
    assert {field.name for field in fields_of(VERBS[verb].request) if field.required} <= arguments


def test_the_help_of_a_command_speaks_of_arguments_and_options_and_not_of_python(cli: Commands) -> None:
    told = cli.ok("queue", "release-stream", "--help").out
    assert "Let later messages of a stream pass" in told
    assert "Returns" not in told
    assert "Raises" not in cli.ok("config", "get", "--help").out


def test_an_optional_field_has_its_bounds_in_the_command(cli: Commands) -> None:
    refused = cli("queue", "drop", "orders", "--min-attempts", "-1")
    assert refused.code == 2
    assert "greater than or equal to 0" in refused.err
