from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.errors import HookInvalid
from fairlead.hooks import Hooks, OnEnqueueCall
from tests.hooks.scripts import QUEUE, enqueue, enqueue_calls, fail, failure_call, returned, value_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lua.md"
#: Every name of the reference manual, and those that bridges and older versions add.
LUA_5_4 = {
    f"{library}{name}"
    for library, names in {
        "": """_G _VERSION assert collectgarbage coroutine debug dofile error getmetatable io ipairs load loadfile math next os package pairs pcall
            print rawequal rawget rawlen rawset require select setmetatable string table tonumber tostring type utf8 warn xpcall arg bit32 builtins
            eval exec getfenv jit loadstring lua lupa module newproxy none null python setfenv unpack fila fairlead""",
        "string.": "byte char dump find format gmatch gsub len lower match pack packsize rep reverse sub unpack upper",
        "table.": "concat insert move pack remove sort unpack",
        "math.": """abs acos asin atan ceil cos deg exp floor fmod huge log max maxinteger min mininteger modf pi rad random randomseed sin sqrt
            tan tointeger type ult""",
        "utf8.": "char charpattern codepoint codes len offset",
        "fila.": "get set",
        "fairlead.": "get set",
    }.items()
    for name in names.split()
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("math.floor(2.7) + math.max(1, 2)", "4"),
        ("math.random() < 1", "true"),
        ('string.format("%s-%03d-%5.2f", "a", 7, 1.5)', "a-007- 1.50"),
        ('("a,b"):upper():rep(2, ";")', "A,B;A,B"),
        ('("key=value"):match("=(.*)")', "value"),
        ('select(2, ("aaa"):gsub("a", "b"))', "3"),
        ('table.concat({ 1, 2, 3 }, "-")', "1-2-3"),
        ("#table.pack(table.unpack({ 1, 2, 3 }))", "3"),
        ("table.concat(table.move({ 1, 2 }, 1, 2, 2), '-')", "1-1-2"),
        ('utf8.len("añb")', "3"),
        ('tonumber("0x10")', "16"),
        ("10 // 3 .. '/' .. (5 & 4)", "3/4"),
        ('pcall(error, "x")', "false"),
        ('select(2, xpcall(error, function(e) return e .. "!" end, "x"))', "x!"),
        ('select("#", pcall(function() return 1, nil, 3 end))', "4"),
        ("next({ 7 })", "1"),
        ("_VERSION", "Lua 5.4"),
        ("_G == _G._G", "true"),
        ("rawlen({ 1, 2 }) + rawget({ 5 }, 1)", "7"),
    ],
)
def test_everyday_lua_works(expression: str, value: str, hosted: Hooks) -> None:
    assert value_of(hosted, expression) == value


@pytest.mark.parametrize(
    "name",
    [
        "io",
        "os",
        "debug",
        "package",
        "require",
        "python",
        "coroutine",
        "load",
        "loadstring",
        "loadfile",
        "dofile",
        "collectgarbage",
        "getmetatable",
        "setmetatable",
        "rawset",
        "print",
        "warn",
        "string.dump",
        "string.pack",
        "math.randomseed",
    ],
)
def test_names_outside_the_allow_list_do_not_exist(name: str, hosted: Hooks) -> None:
    assert value_of(hosted, name) == "nil"


def test_the_page_and_the_sandbox_name_the_same_things(hosted: Hooks) -> None:
    section = PAGE.read_text().split("## What a script can use")[1].split("\n## ")[0]
    documented = set(re.findall(r"`([\w.]+)`", section))
    quoted = ", ".join(f'"{name}"' for name in sorted(documented | LUA_5_4))
    script = f"""function on_enqueue(msg)
      local found = {{}}
      for _, name in ipairs({{ {quoted} }}) do
        local value = _G
        for part in name:gmatch("[^.]+") do value = value and value[part] end
        if value ~= nil then found[#found + 1] = name end
      end
      return {{ fairness_key = table.concat(found, " ", tonumber(msg.headers.from), math.min(#found, msg.headers.from + 19)) }}
    end"""
    decisions = enqueue(hosted, script, [OnEnqueueCall({"from": str(at)}, 0) for at in range(1, 101, 20)])
    assert {name for d in decisions for name in (d.fairness_key or "").split()} == documented


def test_no_address_is_shown(hosted: Hooks) -> None:
    assert value_of(hosted, "{}") == "table"
    assert value_of(hosted, 'string.format("%s %s", {}, print or error)') == "table function"
    assert "is not available" in returned(hosted, '{ fairness_key = string.format("%p", {}) }').error


def test_on_enqueue_sees_the_message(hooks: Hooks) -> None:
    script = """function on_enqueue(msg)
      return { fairness_key = msg.queue .. "/" .. msg.headers.tenant, weight = msg.payload_size, stream = msg.headers["größe"] }
    end"""
    (decision,) = enqueue(hooks, script, [OnEnqueueCall({"tenant": "acmé", "größe": "groß"}, 7)])
    assert (decision.fairness_key, decision.weight, decision.stream, decision.throttle_keys) == (
        "orders/acmé",
        7,
        "groß",
        None,
    )


def test_on_failure_sees_the_failure(hooks: Hooks) -> None:
    script = """function on_failure(msg)
      local hopeless = msg.reason == "validation_failure" or msg.error:find("never") or msg.attempts >= 3
      if hopeless or msg.progress & 4 == 4 or msg.headers.once or msg.id == "dead" or msg.queue ~= "orders" then
        return { action = "dlq" }
      end
      return { action = "retry", delay_ms = 1000 * msg.attempts }
    end"""
    calls = [
        failure_call(),
        failure_call(attempts=2),
        failure_call(attempts=3),
        failure_call(reason="validation_failure"),
        failure_call(error="never again"),
        failure_call(progress=(1 << 63) + 4),
        failure_call(headers={"once": "1"}),
        failure_call(id="dead"),
    ]
    decisions = fail(hooks, script, *calls)
    assert [(d.outcome, d.action, d.delay_ms) for d in decisions] == [
        ("ran", "retry", 1000),
        ("ran", "retry", 2000),
        *[("ran", "dlq", 0)] * 6,
    ]


def test_many_and_large_headers_arrive(hooks: Hooks) -> None:
    headers = {f"name-{n}": "v" * 50 for n in range(1000)}
    script = "function on_enqueue(msg) local n = 0 for _, v in pairs(msg.headers) do n = n + #v end return { fairness_key = tostring(n) } end"
    assert enqueue(hooks, script, [OnEnqueueCall(headers, 0)])[0].fairness_key == "50000"


def test_configuration_is_read_under_both_names(hooks: Hooks) -> None:
    hooks.load_config({"a": "1", "gone": "x"})
    hooks.set_config("b", "zwei")
    hooks.set_config("gone", None)
    assert value_of(hooks, 'fila.get("a") .. fairlead.get("b")') == "1zwei"
    assert value_of(hooks, 'fila.get("gone")') == "nil"
    assert value_of(hooks, 'fila.get("\\xff")') == "nil"


def test_a_change_of_configuration_is_seen_by_the_next_batch(hooks: Hooks) -> None:
    script = 'function on_enqueue(msg) return { fairness_key = fila.get("who") or "nobody" } end'
    seen = [enqueue(hooks, script)[0].fairness_key]
    for value in ("acme", "globex", None):
        hooks.set_config("who", value)
        seen.append(enqueue(hooks, script)[0].fairness_key)
    assert seen == ["nobody", "acme", "globex", "nobody"]


def test_configuration_can_be_read_at_the_top_level_and_inside_pcall(hooks: Hooks) -> None:
    hooks.set_config("a", "1")
    script = 'local a = fila.get("a") function on_enqueue() local ok, b = pcall(fila.get, "a") return { fairness_key = a .. b .. tostring(ok) } end'
    hooks.check(script, "on_enqueue")
    assert enqueue(hooks, script)[0].fairness_key == "11true"


def test_a_large_configuration_value_is_not_charged_to_the_script(hooks: Hooks) -> None:
    for n in range(40):
        hooks.set_config(f"big{n}", "x" * 60_000)
    script = 'function on_enqueue() local n = 0 for i = 0, 39 do n = n + #fila.get("big" .. i) end return { fairness_key = tostring(n) } end'
    assert enqueue(hooks, script)[0].fairness_key == "2400000"


def test_a_script_that_reads_keys_without_end_fails(hooks: Hooks) -> None:
    decision = enqueue(hooks, 'function on_enqueue() for i = 1, 1e9 do fila.get("k" .. i) end end')[0]
    assert decision.outcome == "failed"


@pytest.mark.parametrize(
    ("script", "line", "what"),
    [
        ("function on_enqueue(msg)\n  return {\nend", 3, "expected"),
        ("\n\nx = = 1", 3, "unexpected symbol"),
        ("local t = nil\nt.x = 1\nfunction on_enqueue() end", 2, "attempt to index"),
        ("function on_failure() end", None, "defines no function on_enqueue"),
        ("local function on_enqueue() end", None, "defines no function on_enqueue"),
        ("on_enqueue = 5", None, "defines no function on_enqueue"),
        ("", None, "defines no function on_enqueue"),
        ("while true do end", None, "than 10 ms allow"),
        ('("a"):rep(28):find(("a?"):rep(28) .. ("a"):rep(28) .. "b")', None, "than 10 ms allow"),
        ("local t = {} while true do t[#t + 1] = {} end", None, "bytes of memory"),
        ("-- " + "x" * 65536, None, "more than 65536"),
        ("\udc80", None, "UTF-8"),
        ("\x1bLua", None, "binary chunk"),
        ("return " + "(" * 300 + "1" + ")" * 300, None, "overflow"),
    ],
)
def test_a_script_that_cannot_run_is_refused_with_its_line(
    script: str, line: int | None, what: str, hosted: Hooks
) -> None:
    with pytest.raises(HookInvalid) as refused:
        hosted.check(script, "on_enqueue")
    assert refused.value.line == line
    assert what in refused.value.what


def test_a_script_with_both_functions_serves_both(hooks: Hooks) -> None:
    script = (
        'function on_enqueue() return { weight = 2 } end function on_failure() return { action = "dlq" } end'
    )
    hooks.check(script, "on_enqueue")
    hooks.check(script, "on_failure")
    assert enqueue(hooks, script)[0].weight == 2
    assert fail(hooks, script)[0].action == "dlq"


def test_a_queue_without_a_script_has_the_outcome_absent(hooks: Hooks) -> None:
    assert [d.outcome for d in hooks.on_enqueue(QUEUE, "orders", enqueue_calls(2))] == ["absent"] * 2
    assert hooks.on_failure(QUEUE, "orders", [failure_call()])[0].outcome == "absent"
    assert hooks.pids() == []
