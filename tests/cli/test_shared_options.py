from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

import fairlead
from fairlead import errors
from fairlead.cli.global_options import GlobalOptions
from fairlead.wire.statuses import status_of
from tests.cli.conftest import Commands, Opener, Orders


@pytest.mark.parametrize(
    "args",
    [["--data", "{}", "-o", "json", "queue", "list"], ["queue", "list", "--output", "json", "--data", "{}"]],
)
def test_shared_options_work_before_and_behind_the_name_of_a_command(
    cli: Commands, orders: Orders, data: Path, args: list[str]
) -> None:
    ran = cli(*(arg.format(data) for arg in args), env={"FAIRLEAD_DATA": None})
    assert [queue["name"] for queue in ran.json()] == ["orders"]


def test_an_option_behind_the_command_beats_one_in_front_of_it(
    cli: Commands, orders: Orders, tmp_path: Path
) -> None:
    ran = cli("--data", tmp_path / "other", "-o", "text", "queue", "list", "--data", cli.data, "-o", "json")
    assert len(ran.json()) == 1


def test_a_flag_beats_the_environment() -> None:
    both = GlobalOptions(addr="here:1", data=Path("d"))
    assert replace(both, from_env=frozenset({"data"})).target() == "here:1"
    assert replace(both, from_env=frozenset({"addr"})).target() == Path("d")
    assert GlobalOptions(addr="here:1", from_env=frozenset({"addr"})).target() == "here:1"
    assert GlobalOptions(data=Path("d"), from_env=frozenset({"data"})).target() == Path("d")
    assert GlobalOptions().target() == "127.0.0.1:5554"


@pytest.mark.parametrize("env", [None, {"FAIRLEAD_ADDR": "127.0.0.1:1"}])
def test_an_address_and_a_directory_at_once_are_refused(
    cli: Commands, orders: Orders, env: dict[str, str | None] | None
) -> None:
    flags = [] if env else ["--addr", "127.0.0.1:1", "--data", str(cli.data)]
    ran = cli("queue", "list", *flags, env=env)
    assert ran.code == 2
    assert "not both" in ran.err


def test_a_data_directory_that_is_not_there_is_not_made_by_looking_at_it(cli: Commands) -> None:
    ran = cli("queue", "list")
    assert ran.code == 2
    assert "expected" in ran.err
    assert not cli.data.exists()
    cli.ok("queue", "create", "orders")
    assert cli.data.exists()


def test_errors_have_the_exit_code_of_the_table_and_go_to_stderr(cli: Commands, orders: Orders) -> None:
    for args, error in (
        (["queue", "pause", "nothing"], errors.QueueNotFound("nothing")),
        (["queue", "create", "orders"], errors.QueueExists("orders")),
        (["queue", "create", "a b"], errors.InvalidRequest("queue", "", "")),
        (["queue", "inspect", "orders", "ffff0000"], errors.MessageNotFound("ffff0000")),
        (["config", "get", "no.such"], errors.ConfigKeyNotFound("no.such")),
        (
            ["queue", "create", "x", "--on-failure", "function on_enqueue() end"],
            errors.HookInvalid("on_failure", 1, ""),
        ),
    ):
        ran = cli(*args)
        assert (ran.code, ran.out) == (status_of(error).exit_code, "")
        assert ran.err.startswith("error: ")
        told = cli(*args, "-o", "json")
        assert told.error()["code"] == error.code
        assert told.out == ""


def test_an_error_as_json_has_code_message_fields_and_hints(cli: Commands, orders: Orders) -> None:
    assert cli("queue", "pause", "ordres", "-o", "json").error() == {
        "code": "queue_not_found",
        "message": str(errors.QueueNotFound("ordres")),
        "fields": {"queue": "ordres"},
        "hints": ["did you mean 'orders' or 'orders.dlq'?"],
    }


def test_wrong_usage_is_exit_code_2_and_an_error_of_its_own_as_json(cli: Commands, orders: Orders) -> None:
    ran = cli("-o", "json", "queue", "push", "orders")
    assert ran.code == 2
    assert ran.error()["code"] == "usage"


def test_names_that_are_nearly_right_are_suggested(cli: Commands, orders: Orders) -> None:
    cli.ok("config", "set", "throttle:mail:rate", "5")
    for args, near in (
        (["queue", "show", "Order"], "orders"),
        (["queue", "shw", "orders"], "show"),
        (["queue", "show", "orders", "--limt", "3"], "--limit"),
        (["queue", "show", "orders", "--status", "daed"], "dead"),
        (["queue", "retry", "orders", "--reason", "serialisation_error"], "serialization_error"),
        (["config", "get", "throttle:mail:rat"], "throttle:mail:rate"),
    ):
        ran = cli(*args)
        assert ran.code in (2, 4)
        assert near in ran.err, args


def test_an_unknown_queue_with_nothing_near_says_what_to_do(
    cli: Commands, orders: Orders, broker: Opener
) -> None:
    assert "fairlead queue list" in cli("queue", "pause", "zzz").err
    with broker() as opened:
        opened.delete_queue("orders")
    assert "fairlead queue create zzz" in cli("queue", "pause", "zzz").err


def test_the_version_is_said_without_a_target(cli: Commands) -> None:
    assert cli("--version", env={"FAIRLEAD_DATA": None}).out == f"fairlead {fairlead.__version__}\n"


def test_a_data_directory_that_has_lost_a_file_is_corrupt_and_not_taken_for_none(
    cli: Commands, orders: Orders
) -> None:
    (cli.data / "CURRENT").unlink()
    assert cli("queue", "list", "-o", "json").error()["code"] == "store_corrupt"


@pytest.mark.parametrize(
    ("options", "tried"), [((), "1s"), (("--wait", "50ms"), "50ms")], ids=["a person", "said"]
)
def test_a_server_that_is_not_there_is_tried_for_a_second_or_for_as_long_as_wait_says(
    cli: Commands, options: tuple[str, ...], tried: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        for order in ((*options, "queue", "list"), ("queue", "list", *options)):
            ran = cli("--addr", nobody, *order)
            assert (ran.code, ran.err.splitlines()[1].strip()) == (
                7,
                f"tried for {tried}; --wait DURATION tries longer",
            )


def test_a_wait_that_is_no_duration_is_refused(cli: Commands) -> None:
    refused = cli("--addr", "127.0.0.1:1", "--wait", "long", "queue", "list")
    assert (refused.code, refused.err.startswith("error: expected --wait to be ")) == (3, True)
