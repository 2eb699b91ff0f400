"""Steps that are commands: their input, and the meaning of their exit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.runbook.model import StepSpec
from fairlead.worker.plan import dump_carry
from fairlead.worker.protocol import CallDone, CallFailed, PipelineSetup, StepCall
from fairlead.worker.step_runner import StepRunner
from tests.worker.scene import command, until

RAW_ID = bytes(range(16))


def run(step: StepSpec, item: Any, tmp_path: Path, *, before: bytes = b"") -> CallDone | CallFailed:
    setup = PipelineSetup(
        "p", (StepSpec("before", run="tests.worker.steps:nothing"), step), {}, str(tmp_path)
    )
    carry = dump_carry("p", {"before": before}) if before else b""
    payload = item if isinstance(item, bytes) else json.dumps(item).encode()
    return StepRunner(setup)(StepCall(1, 1, RAW_ID, "work", payload, b"", "s", 2, 3, 0, carry))


def say(*argv: str, **options: Any) -> StepSpec:
    """A step that prints its arguments as a JSON list."""
    return command(
        "say", "python3", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *argv, **options
    )


@pytest.mark.parametrize(
    "hostile", ["; rm -rf /", "$(id)", "a b\nc", "--delete", "-", "", "{n}", "`id`", "'\"", "é\u202e"]
)
def test_a_field_stays_one_argument_whatever_it_contains(hostile: str, tmp_path: Path) -> None:
    result = run(
        say("{name}", "to {name}", "{{name}}", "{n}"), {"name": hostile, "n": {"a": [1, None]}}, tmp_path
    )
    assert isinstance(result, CallDone), result
    assert json.loads(result.value) == [hostile, f"to {hostile}", "{name}", '{"a":[1,null]}']


def test_a_command_gets_the_item_on_stdin_and_its_context_in_the_environment(tmp_path: Path) -> None:
    item = {"n": 12, "name": "ann", "LD_PRELOAD": "x", "odd name": 1}
    script = "import json, os, sys; print(json.dumps([json.load(sys.stdin), dict(os.environ)]))"
    step = command("all", "python3", "-c", script, env={"WHO": "{name}!"})
    result = run(step, item, tmp_path, before=b'{"sum":1}')
    assert isinstance(result, CallDone), result
    stdin, environment = json.loads(result.value)
    assert stdin == item
    assert environment["WHO"] == "ann!"
    assert environment["FAIRLEAD_ITEM_n"] == "12"
    assert environment["FAIRLEAD_STEP_ID"] == show_id(RAW_ID)
    assert environment["FAIRLEAD_STEP_ATTEMPTS"] == "2"
    assert environment["FAIRLEAD_STEP_VALUE"] == '{"sum":1}'
    assert environment.get("LD_PRELOAD") == os.environ.get("LD_PRELOAD")
    assert "odd name" not in str(environment)


def test_without_stdin_a_command_reads_nothing(tmp_path: Path) -> None:
    result = run(command("cat", "cat", stdin="none"), {"n": 1}, tmp_path)
    assert result == CallDone(1, result.took_us, b"")


def test_a_command_that_does_not_read_a_large_item_is_not_waited_for(tmp_path: Path) -> None:
    assert isinstance(run(command("true", "true"), {"n": "x" * 3_000_000}, tmp_path), CallDone)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1, "handler_exception"),
        (65, "validation_failure"),
        (69, "transport_unavailable"),
        (75, "dependency_failure"),
    ],
)
def test_the_exit_code_selects_the_reason_and_the_record_has_the_output(
    code: int, reason: str, tmp_path: Path
) -> None:
    result = run(
        command("fail", "sh", "-c", f"echo to stdout; echo to stderr >&2; exit {code}"), {}, tmp_path
    )
    assert isinstance(result, CallFailed)
    assert FailureReason(result.reason).word == reason
    assert f"'sh' ended with exit code {code}" in result.error
    assert "to stdout" in result.error
    assert "to stderr" in result.error


def test_long_output_is_read_to_its_end_and_its_head_and_tail_are_kept(tmp_path: Path) -> None:
    script = "import sys; sys.stderr.write('head ' + 'x' * 5_000_000 + ' tail'); sys.exit(1)"
    result = run(command("loud", "python3", "-c", script), {}, tmp_path)
    assert isinstance(result, CallFailed)
    assert len(result.error.encode()) <= 8192
    assert "head x" in result.error
    assert "x tail" in result.error


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = run(
        command("hang", "sh", "-c", "sleep 3600 & echo $! > pids; echo before; wait", timeout_ms=300),
        {},
        tmp_path,
    )
    assert isinstance(result, CallFailed)
    assert FailureReason(result.reason) is FailureReason.TIMEOUT_EXCEEDED
    assert "before" in result.error
    child = int(pids.read_text())
    until(lambda: not _is_running(child), "the end of what the command had started")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_left_behind_by_a_command_does_not_delay_the_step(tmp_path: Path) -> None:
    result = run(command("leave", "sh", "-c", "sleep 30 & echo 7"), {}, tmp_path)
    assert isinstance(result, CallDone)
    assert result.value == b"7"
    assert result.took_us < 25_000_000


@pytest.mark.parametrize(
    ("step", "item", "reason"),
    [
        (command("gone", "no-such-program-here"), {}, "dependency_failure"),
        (say("{missing}"), {"n": 1}, "validation_failure"),
        (say("{n}"), {"n": "a\0b"}, "validation_failure"),
        (say("{n}"), {"n": "x" * 3_000_000}, "validation_failure"),
        (command("die", "sh", "-c", "kill -9 $$"), {}, "poison_message"),
        (say("{n}"), b"not json", "serialization_error"),
    ],
)
def test_a_command_that_cannot_run_fails_with_a_fitting_reason(
    step: StepSpec, item: Any, reason: str, tmp_path: Path
) -> None:
    result = run(step, item, tmp_path)
    assert isinstance(result, CallFailed), result
    assert FailureReason(result.reason).word == reason
    assert result.error.startswith(f"step {step.name!r}: ")


def test_output_that_is_not_json_is_no_value(tmp_path: Path) -> None:
    result = run(command("chat", "echo", "all done"), {}, tmp_path)
    assert isinstance(result, CallDone)
    assert result.value == b""
