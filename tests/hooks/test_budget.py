"""The CPU time of a call: what counts as its own, by a clock that the test sets."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from fairlead.hooks import host
from fairlead.hooks.wire import OK, TIME, CheckScript, HostSetup

LUA: Any = importlib.import_module("lupa.lua54")
SANDBOX = (Path(host.__file__).parent / "sandbox.lua").read_text(encoding="utf-8")
#: About 20 readings of the clock, a fifth of the instructions that 10 ms allow.
SCRIPT = "function on_enqueue() for i = 1, 20000 do end return {} end"
SETUP = HostSetup(10, 1 << 20, 60_000, 60_000, 1 << 30)


def run_with_clock(seconds_at_look: str) -> int:
    """The status of a call. `seconds_at_look` is Lua: the time at the `n`th reading of the clock."""
    clock = f"local n = 0 os.clock = function() n = n + 1 return {seconds_at_look} end "
    state = host.State(LUA, clock + SANDBOX, CheckScript("on_enqueue", SCRIPT), SETUP)
    status: int = state.call(["orders", 10])[0]
    return status


@pytest.mark.parametrize("look", [1, 2, 3, 10, 19])
def test_one_jump_of_the_clock_does_not_fail_a_call(look: int) -> None:
    assert run_with_clock(f"n * 0.0001 + (n >= {look} and 5 or 0)") == OK


def test_a_call_that_computes_long_between_two_pairs_of_checks_is_stopped() -> None:
    assert run_with_clock("n * 0.0001 + (n >= 3 and 5 or 0) + (n >= 4 and 0.02 or 0)") == TIME


def test_a_call_that_computes_a_little_between_many_checks_is_stopped() -> None:
    assert run_with_clock("n * 0.001") == TIME


def test_a_call_within_its_time_runs() -> None:
    assert run_with_clock("n * 0.0004") == OK
