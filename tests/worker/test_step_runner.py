"""Steps that are Python functions: what they may take, return and raise."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import StepNotLoaded
from fairlead.model.failure import FailureReason
from fairlead.runbook.model import StepSpec
from fairlead.worker.protocol import CallDone, CallFailed, PipelineSetup, StepCall
from fairlead.worker.step_runner import StepRunner
from tests.docs.pages import ROOT


def call(
    run: str, item: Any, *, base: str = str(ROOT), reasons: dict[str, str] | None = None
) -> CallDone | CallFailed:
    setup = PipelineSetup("p", (StepSpec("only", run=run),), reasons or {}, base)
    payload = item if isinstance(item, bytes) else json.dumps(item).encode()
    return StepRunner(setup)(StepCall(1, 0, bytes(16), "work", payload, b"", "", 0, 1, 0, b""))


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "own_steps.py").write_text(
        "def one(item): return [item, 1]\n"
        "def two(item, step): return [step.name, step.attempts, step.value]\n"
        "def keyword(item, *, option=1): return option\n"
        "def optional(item, limit=5): return limit\n"
        "async def later(item): return 'later'\n"
        "class Service:\n"
        "    def __call__(self, item): return 'called'\n"
        "    @staticmethod\n"
        "    def handle(item): return 'handled'\n"
        "service = Service()\n"
        "number = 7\n"
        "def none(): ...\n"
        "def many(a, b, c): ...\n"
        "def deeper(): raise RuntimeError('here')\n"
        "def fails(item): deeper()\n"
        "def fails_too(item, step): deeper()\n"
        "async def fails_later(item, step): deeper()\n"
    )
    yield str(tmp_path)
    sys.modules.pop("own_steps", None)
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("one", [{"n": 1}, 1]),
        ("two", ["only", 0, None]),
        ("keyword", 1),
        ("optional", 5),
        ("later", "later"),
        ("service", "called"),
        ("Service.handle", "handled"),
    ],
)
def test_a_function_gets_the_item_and_optionally_the_step(name: str, value: object, module: str) -> None:
    result = call(f"own_steps:{name}", {"n": 1}, base=module)
    assert isinstance(result, CallDone), result
    assert json.loads(result.value) == value


@pytest.mark.parametrize(
    "run",
    [
        "own_steps:missing",
        "no_such_module:f",
        "own_steps:number",
        "own_steps:none",
        "own_steps:many",
        "own_steps",
        ":f",
    ],
)
def test_a_step_that_cannot_run_is_refused_before_anything_is_claimed(run: str, module: str) -> None:
    with pytest.raises(StepNotLoaded) as refused:
        call(run, {}, base=module)
    assert refused.value.step == "only"


@pytest.mark.parametrize(
    ("how", "reason", "text"),
    [
        ("connection", "transport_unavailable", "refused"),
        ("timeout", "timeout_exceeded", "late"),
        ("value", "handler_exception", "odd"),
        ("json", "serialization_error", "JSONDecodeError"),
        ("unicode", "serialization_error", "UnicodeDecodeError"),
        ("exit", "handler_exception", "SystemExit: 3"),
        ("nan", "serialization_error", "JSON"),
        ("object", "serialization_error", "JSON"),
    ],
)
def test_any_exception_of_a_step_is_a_failure_with_a_reason_and_a_text(
    how: str, reason: str, text: str
) -> None:
    result = call("tests.worker.steps:raises", {"how": how, "secret": "hunter2"})
    assert isinstance(result, CallFailed)
    assert FailureReason(result.reason).word == reason
    assert text in result.error
    assert "hunter2" not in result.error


def test_a_traceback_begins_in_the_step_and_not_in_its_caller() -> None:
    result = call("tests.worker.steps:raises", {"how": "value"})
    assert isinstance(result, CallFailed)
    assert "steps.py" in result.error
    assert "calling.py" not in result.error


def test_a_worker_may_name_reasons_for_its_own_exceptions() -> None:
    result = call("tests.worker.steps:raises", {"how": "mine"}, reasons={"OutOfPaper": "dependency_failure"})
    assert isinstance(result, CallFailed)
    assert FailureReason(result.reason) is FailureReason.DEPENDENCY_FAILURE


def test_a_step_may_classify_its_failure() -> None:
    dead, later = (
        call("tests.worker.steps:raises", {"how": "dead"}),
        call("tests.worker.steps:raises", {"how": "later"}),
    )
    assert isinstance(dead, CallFailed)
    assert isinstance(later, CallFailed)
    assert (dead.dead, dead.retry_in_ms, FailureReason(dead.reason).word) == (
        True,
        None,
        "validation_failure",
    )
    assert (later.dead, later.retry_in_ms, FailureReason(later.reason).word) == (
        False,
        90_000,
        "handler_exception",
    )
    assert dead.error == "step 'only': no use"


def test_an_invalid_classification_is_noted_and_the_policy_decides() -> None:
    result = call("tests.worker.steps:raises", {"how": "nonsense"})
    assert isinstance(result, CallFailed)
    assert (result.dead, result.retry_in_ms, FailureReason(result.reason).word) == (
        False,
        None,
        "handler_exception",
    )
    assert "bad luck" in result.error
    assert "soon" in result.error


def test_a_step_may_close_the_throttle_key_of_its_provider() -> None:
    result = call("tests.worker.steps:raises", {"how": "throttled"})
    assert isinstance(result, CallFailed)
    assert (result.close, result.retry_after_ms, result.error) == ("api", 60_000, "step 'only': 429")
    result = call("tests.worker.steps:raises", {"how": "throttled nonsense"})
    assert isinstance(result, CallFailed)
    assert (result.close, result.retry_after_ms) == ("", 0)
    assert "soon" in result.error


@pytest.mark.parametrize("payload", [b"not json", b"\xff\xfe", b"", b"[" * 100_000])
def test_a_payload_that_is_not_json_fails_without_a_call(payload: bytes) -> None:
    result = call("tests.worker.steps:nothing", payload)
    assert isinstance(result, CallFailed)
    assert FailureReason(result.reason) is FailureReason.SERIALIZATION_ERROR


@pytest.mark.parametrize("name", ["fails", "fails_too", "fails_later"])
def test_a_traceback_has_the_line_of_the_step_and_none_of_fairlead(name: str, module: str) -> None:
    failed = call(f"own_steps:{name}", {}, base=module)
    assert isinstance(failed, CallFailed)
    assert (
        f'own_steps.py", line {15 + ["fails", "fails_too", "fails_later"].index(name)}, in {name}'
        in failed.error
    )
    assert "calling.py" not in failed.error
