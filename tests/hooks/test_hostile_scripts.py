"""Every known way out of an embedded Lua. Each must be contained: the guilty call gets the defaults, the
breaker counts it, and the hook of another queue works before, between and after.
"""

from __future__ import annotations

import re
import threading

import pytest

from fairlead.errors import HookInvalid
from fairlead.hooks import Hooks
from tests.hooks.scripts import KIND, OTHER, QUEUE, enqueue, enqueue_calls, fail, failure_call

CATASTROPHIC = 'string.find(("a"):rep(28), ("a?"):rep(28) .. ("a"):rep(28) .. "b")'

#: Each ends as a failed call.
FATAL = {
    "endless loop": "while true do end",
    "endless loop of slow calls": "while true do local x = ('x'):rep(900000) end",
    "loop inside pcall": "while true do pcall(function() while true do end end) end",
    "loop inside nested pcalls": "local function f() while true do pcall(f) end end f()",
    "loop in the handler of xpcall": "xpcall(function() while true do end end, function() while true do end end)",
    "handler of xpcall swallows the budget": "while true do xpcall(function() while true do end end, function() return 1 end) end",
    "loop in a comparison of sort": "table.sort({3, 2, 1}, function() while true do end end)",
    "loop in a replacement of gsub": '("abc"):gsub(".", function() while true do end end)',
    "loop in a coroutine": "coroutine.wrap(function() while true do end end)()",
    "loop in a finaliser": "setmetatable({}, { __gc = function() while true do end end }) collectgarbage()",
    "loop in __index of the result": "return setmetatable({}, { __index = function() while true do end end })",
    "loop in __tostring of the result": "return { fairness_key = setmetatable({}, { __tostring = function() while true do end end }) }",
    "loop in __close": "local x <close> = setmetatable({}, { __close = function() while true do end end })",
    "loop in __tostring of the error": "error(setmetatable({}, { __tostring = function() while true do end end }))",
    "catastrophic pattern": CATASTROPHIC,
    "catastrophic pattern inside pcall": f"pcall(function() {CATASTROPHIC} end)",
    "catastrophic lazy pattern": '("x"):rep(3000):find(".-.-.-.-b")',
    "endless repetition of nothing": '(""):rep(1e15)',
    "endless move of nothing": "table.move({}, 1, 1e15, 2)",
    "string bomb": 'local s = "x" while true do s = s .. s end',
    "string bomb inside pcall": 'while true do pcall(function() local s = "x" while true do s = s .. s end end) end',
    "repetition bomb": '("x"):rep(1 << 30)',
    "table bomb": "local t = {} while true do t[#t + 1] = {} end",
    "table bomb inside pcall": "while true do pcall(function() local t = {} while true do t[#t + 1] = { 1, 2, 3 } end end) end",
    "stack bomb": "local function f() return 1 + f() end f()",
    "unpack bomb": "table.unpack({}, 1, 900000)",
    "closure bomb": "local f = function() end while true do local g = f f = function() return g end end",
    "global bomb": "local i = 0 while true do i = i + 1 _G['g' .. i] = ('x'):rep(1000) end",
    "poisoned string library": 'string.find = function() return "stolen" end',
    "poisoned string metatable": 'getmetatable("").__index = function() return "stolen" end',
    "poisoned table library through insert": "table.insert(table, 1)",
    "poisoned library through rawset": 'rawset(string, "find", 1)',
    "load of text": 'load("return 1")()',
    "load of bytecode": "load(string.dump(function() end))()",
    "loadstring": 'loadstring("return 1")()',
    "dofile": 'dofile("/etc/passwd")',
    "loadfile": 'loadfile("/etc/passwd")()',
    "require": 'require("os")',
    "os": 'os.execute("true")',
    "io": 'io.open("/etc/passwd")',
    "debug": "debug.getregistry()",
    "package": 'package.loadlib("libc.so.6", "*")',
    "python": 'python.eval("1")',
    "python builtins": "python.builtins.getattr(fila.get, '__class__')",
    "attributes of what fila.get is": "return fila.get.__class__",
    "result is nothing": "return",
    "result is a number": "return 42",
    "result is a string": 'return "default"',
    "result is a function": "return function() end",
    "error is a table": "error({})",
    "error is nothing": "error()",
    "error is not text": 'error("\\xff\\xfe")',
    "error without end": 'error(("x"):rep(500000))',
}


#: A single call of the pattern matcher counts no instructions: only a kill ends these.
NEEDS_A_KILL = ("catastrophic pattern", "catastrophic pattern inside pcall", "catastrophic lazy pattern")

NOTHING_LEFT = """
function on_enqueue(msg)
  local before = { leaked == nil, _G.leaked == nil, top, string.leaked == nil, msg.leaked == nil, msg.headers.leaked == nil }
  leaked, _G.leaked, top, msg.leaked, msg.headers.leaked = 1, 1, 99, 1, 1
  string, tostring, on_failure = {}, nil, function() end
  pcall(function() math.floor = nil end)
  local clean = before[1] and before[2] and before[3] == 1 and before[4] and before[5] and before[6]
  return { fairness_key = clean and "clean" or "dirty" }
end
top = 1 + (top or 0)
"""


def hostile(name: str) -> str:
    return f'function on_enqueue(msg) if msg.headers.calm then return {{ fairness_key = "fine" }} end do {FATAL[name]} end end'


def test_the_error_of_a_loop_stopped_by_instructions_does_not_claim_a_duration(
    hosted: Hooks,
) -> None:
    """The instructions of its time limit may be used up in a fraction of it."""
    hosted.set_script(99, "on_enqueue", "function on_enqueue(message) while true do end end")
    (decision,) = hosted.on_enqueue(99, "orders", enqueue_calls())
    assert re.fullmatch(r"stopped: used more instructions or CPU time than \d+ ms allow", decision.error)


@pytest.mark.parametrize(("queue_id", "name"), list(enumerate(FATAL, start=100)), ids=FATAL)
def test_a_hostile_script_is_contained(queue_id: int, name: str, hosted: Hooks) -> None:
    assert other_queue_works(hosted)
    hosted.set_script(queue_id, "on_enqueue", hostile(name))
    for failures in (1, 2, 3):
        (decision,) = hosted.on_enqueue(queue_id, "orders", enqueue_calls())
        assert decision.outcome == "failed"
        assert (decision.fairness_key, decision.weight, decision.throttle_keys, decision.stream) == (
            "default",
            1,
            (),
            None,
        )
        assert 0 < len(decision.error) < 700
        assert other_queue_works(hosted)
        (stats,) = hosted.stats(queue_id)
        assert (stats.failures, stats.consecutive, stats.last_error) == (failures, failures, decision.error)
    assert stats.breaker_open_until_ms is not None
    assert hosted.on_enqueue(queue_id, "orders", enqueue_calls())[0].outcome == "bypassed"


@pytest.mark.parametrize("name", FATAL)
def test_results_before_and_after_a_hostile_call_count(name: str, hosted: Hooks) -> None:
    calm, angry = enqueue_calls(calm="yes"), enqueue_calls()
    hosted.set_script(QUEUE, "on_enqueue", hostile(name))
    decisions = hosted.on_enqueue(QUEUE, "orders", [*calm, *angry, *calm])
    assert [(d.outcome, d.fairness_key) for d in decisions] == [
        ("ran", "fine"),
        ("failed", "default"),
        ("ran", "fine"),
    ]


@pytest.mark.parametrize("name", [name for name in FATAL if name not in NEEDS_A_KILL])
def test_the_sandbox_ends_the_call_without_losing_the_host(name: str, hosted: Hooks) -> None:
    assert other_queue_works(hosted)
    before = hosted._host
    hosted.set_script(QUEUE, "on_enqueue", hostile(name))
    assert hosted.on_enqueue(QUEUE, "orders", enqueue_calls())[0].outcome == "failed"
    assert hosted._host is before


@pytest.mark.parametrize("name", FATAL)
def test_a_hostile_top_level_is_refused_or_contained(name: str, hosted: Hooks) -> None:
    script = f"function on_enqueue() return {{}} end do {FATAL[name]} end"
    if not FATAL[name].startswith("return"):
        with pytest.raises(HookInvalid):
            hosted.check(script, "on_enqueue")
        assert enqueue(hosted, script)[0].outcome == "failed"
    assert other_queue_works(hosted)


def test_on_failure_is_contained_as_well(hooks: Hooks) -> None:
    decisions = fail(hooks, f"function on_failure(msg) {CATASTROPHIC} end", *[failure_call()] * 5)
    assert [(d.outcome, d.action, d.delay_ms) for d in decisions] == [("failed", "retry", 0)] * 3 + [
        ("bypassed", "retry", 0)
    ] * 2
    assert other_queue_works(hooks)


def test_calls_of_the_same_script_share_nothing(hooks: Hooks) -> None:
    assert [d.fairness_key for d in enqueue(hooks, NOTHING_LEFT, enqueue_calls(3))] == ["clean"] * 3


def test_a_failed_call_leaves_nothing_for_the_next_one(hooks: Hooks) -> None:
    script = 'function on_enqueue(msg) if left then return { fairness_key = "dirty" } end left = ("x"):rep(400000) error("now") end'
    assert [d.error for d in enqueue(hooks, script, enqueue_calls(2))] == ["on_enqueue:1: now"] * 2


def test_memory_of_one_call_is_not_charged_to_the_next(hooks: Hooks) -> None:
    script = 'function on_enqueue(msg) keep = ("x"):rep(400000) return { fairness_key = "fits" } end'
    assert {d.fairness_key for d in enqueue(hooks, script, enqueue_calls(50))} == {"fits"}


def test_a_stuck_queue_lets_others_run_between_its_kills(hooks: Hooks) -> None:
    hooks.set_script(QUEUE, "on_enqueue", hostile("catastrophic pattern"))
    assert other_queue_works(hooks)
    stuck_is_done, passed = threading.Event(), []

    def others() -> None:
        while not stuck_is_done.is_set():
            passed.append(other_queue_works(hooks))

    thread = threading.Thread(target=others)
    thread.start()
    decisions = hooks.on_enqueue(QUEUE, "orders", enqueue_calls(1000))
    stuck_is_done.set()
    thread.join()
    assert [d.outcome for d in decisions] == ["failed"] * 3 + ["bypassed"] * 997
    assert len(passed) >= 2
    assert all(passed)


def test_many_threads_get_their_own_answers(hooks: Hooks) -> None:
    wrong = []

    def work(queue_id: int) -> None:
        script = f'function on_enqueue(msg) return {{ fairness_key = "{queue_id}-" .. msg.headers.n }} end'
        for _ in range(5):
            keys = [d.fairness_key for d in enqueue(hooks, script, enqueue_calls(700), queue_id=queue_id)]
            if keys != [f"{queue_id}-{n}" for n in range(700)]:
                wrong.append(queue_id)

    threads = [threading.Thread(target=work, args=(queue_id,)) for queue_id in range(10, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def other_queue_works(hooks: Hooks) -> bool:
    decisions = enqueue(hooks, KIND, enqueue_calls(3), queue_id=OTHER)
    return [d.fairness_key for d in decisions] == ["k-0", "k-1", "k-2"]
