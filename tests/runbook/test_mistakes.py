"""Every mistake is told at once: with its file, its line, its path, and what was meant perhaps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.errors import RunbookInvalid
from fairlead.runbook.check import check_text, read_runbook
from fairlead.runbook.model import MAX_STEPS

QUEUE = '[queue.orders]\nvars = ["customer", "amount"]\n'
PIPELINE = '[pipeline.bill]\nsteps = [{ name = "parse", run = "shop.steps:parse" }]\n'


def problems_of(text: str, syntax: str = "toml") -> list[tuple[int | None, str, str]]:
    with pytest.raises(RunbookInvalid) as refused:
        check_text(text, syntax)
    return [(line, path, what) for _, line, path, what in refused.value.problems]


#: What is wrong, where it is told, and a word of what is told.
MISTAKES = [
    ("[queue.orders]\nretries = 3\n", 2, "queue.orders.retries", "unknown key; did you mean retry?"),
    ("[queues.orders]\n", 1, "queues", "did you mean queue?"),
    (
        '[queue.orders]\nretry = { attempts = 3, cooldown = "soon" }\n',
        2,
        "queue.orders.retry.cooldown",
        'expected a duration such as "30s"',
    ),
    (
        "[queue.orders]\nretry = { attempts = 3, cooldown = 30 }\n",
        2,
        "queue.orders.retry.cooldown",
        'expected a duration such as "30s"',
    ),
    ("[queue.orders]\nretry = { attempts = -1 }\n", 2, "queue.orders.retry.attempts", "from 0 to 1000000"),
    (
        '[queue.orders]\nretry = { base = "30s" }\n',
        2,
        "queue.orders.retry.base",
        'belongs to policy = "exponential"',
    ),
    (
        '[queue.orders]\nretry = { attempts = 2, jitter = "full" }\n',
        2,
        "queue.orders.retry.jitter",
        "together with cooldown",
    ),
    (
        '[queue.orders]\nretry = { policy = "exponentail" }\n',
        2,
        "queue.orders.retry.policy",
        "did you mean exponential?",
    ),
    (
        '[queue.orders]\nretry = { policy = "fixed", factor = 2 }\n',
        2,
        "queue.orders.retry.factor",
        'belongs to policy = "exponential"',
    ),
    ("[queue.orders]\nretry = 3\n", 2, "queue.orders.retry", "expected a policy"),
    (
        '[queue.orders]\nretry_on.timeout = "none"\n',
        2,
        "queue.orders.retry_on.timeout",
        "expected a failure reason",
    ),
    ('[queue.orders]\nvisibility_timeout = "1ms"\n', 2, "queue.orders.visibility_timeout", "at least 100ms"),
    ('[queue.orders]\nvisibility_timeout = "8d"\n', 2, "queue.orders.visibility_timeout", "at most 7d"),
    ('[queue.orders]\nttl = "20000d"\n', 2, "queue.orders.ttl", "between 0 and 10 years"),
    (
        '[queue.orders]\nfailure_breaker = { failures = 5, pause = "1m" }\n',
        2,
        "queue.orders.failure_breaker.within",
        "missing",
    ),
    (
        '[queue.orders]\nhooks = { on_enque = "a.lua" }\n',
        2,
        "queue.orders.hooks.on_enque",
        "did you mean on_enqueue?",
    ),
    ('[queue.orders]\non_enqueue = "a.lua"\n', 2, "queue.orders.on_enqueue", "hooks = { on_enqueue = ... }"),
    (
        '[queue.orders]\nhooks = { on_enqueue = "no/such.lua" }\n',
        2,
        "queue.orders.hooks.on_enqueue",
        "cannot read no/such.lua: No such file",
    ),
    ('[queue.orders]\nvars = ["a", "a"]\n', 2, "queue.orders.vars[1]", "only once"),
    ('[queue.orders]\nvars = ["2nd"]\n', 2, "queue.orders.vars[0]", "a field name"),
    (QUEUE + 'defaults = { custmer = "x" }\n', 3, "queue.orders.defaults.custmer", "did you mean customer?"),
    ('[queue.orders]\ndefaults = { customer = "x" }\n', 2, "queue.orders.defaults.customer", "not in vars"),
    (
        QUEUE + "defaults = { customer = 2026-01-01 }\n",
        3,
        "queue.orders.defaults.customer",
        "expected a value",
    ),
    (QUEUE + "defaults = { amount = inf }\n", 3, "queue.orders.defaults.amount", "expected a value"),
    ('[queue."two words"]\n', 1, "queue.'two words'", "expected a name"),
    ('[queue."shop/orders"]\n', 1, "queue.'shop/orders'", "expected a name"),
    ('[queue."orders.dlq"]\n', 1, "queue.orders.dlq", "does not end in '.dlq'"),
    ('[queue."issues.taken"]\n', 1, "queue.issues.taken", "does not end in '.taken'"),
    ('project = "a/b"\n', 1, "project", "expected a name"),
    ('[queue.orders]\nlist = ["ls"]\n', 2, "queue.orders.list", 'add type = "external"'),
    ('[queue.orders]\ntype = "extern"\n', 2, "queue.orders.type", "did you mean external?"),
    ('[queue.jira]\ntype = "external"\nlist = ["ls"]\n', 1, "queue.jira.take", "missing"),
    (
        '[queue.jira]\ntype = "external"\nlist = ["ls"]\ntake = ["true"]\nretry = { attempts = 3 }\n',
        5,
        "queue.jira.retry",
        "only for persisted",
    ),
    (
        '[queue.jira]\ntype = "external"\nlist = ["ls"]\ntake = ["true"]\nvars = ["a"]\n',
        5,
        "queue.jira.vars",
        "only for persisted",
    ),
    ('[queue.jira]\ntype = "external"\nlist = "ls -l"\ntake = ["true"]\n', 3, "queue.jira.list", "as a list"),
    ('[queue.jira]\ntype = "external"\nlist = []\ntake = ["true"]\n', 3, "queue.jira.list", "as a list"),
    (
        '[queue.jira]\ntype = "external"\nlist = ["ls"]\ntake = ["true"]\npoll = "often"\n',
        5,
        "queue.jira.poll",
        "expected a duration",
    ),
    ("[pipeline.bill]\n", 1, "pipeline.bill", "expected steps as a list"),
    ("[pipeline.bill]\nsteps = []\n", 2, "pipeline.bill.steps", "at least one"),
    ("[pipeline.bill]\nstep = {}\n", 2, "pipeline.bill.step", "at least one"),
    ('[pipeline.bill]\nsteps = [\n  { run = "a:b" },\n]\n', 3, "pipeline.bill.steps[0].name", "missing"),
    ('[pipeline.bill]\nsteps = [\n  { name = "a" },\n]\n', 3, "pipeline.bill.steps[0]", "got neither"),
    (
        '[pipeline.bill]\nsteps = [\n  { name = "a", run = "a:b", command = ["x"] },\n]\n',
        3,
        "pipeline.bill.steps[0]",
        "got both",
    ),
    (
        '[pipeline.bill]\nsteps = [\n{ name = "a", run = "a:b" },\n{ name = "a", run = "a:c" }]\n',
        4,
        "pipeline.bill.steps[1].name",
        "'a' again",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "shop.steps.parse" }]\n',
        2,
        "pipeline.bill.steps[0].run",
        "module:function",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "shop.class:parse" }]\n',
        2,
        "pipeline.bill.steps[0].run",
        "module:function",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "a:b", timeout = "0s" }]\n',
        2,
        "pipeline.bill.steps[0].timeout",
        "at least 1ms",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", command = ["x"], batch = true }]\n',
        2,
        "pipeline.bill.steps[0].batch",
        "with run: a command",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "a:b", batch_size = 9 }]\n',
        2,
        "pipeline.bill.steps[0].batch_size",
        "batch = true makes it",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "a:b", batch = false, batch_size = 9 }]\n',
        2,
        "pipeline.bill.steps[0].batch_size",
        "expected batch = true beside batch_size",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "a:b", batch = true, batch_size = 10001 }]\n',
        2,
        "pipeline.bill.steps[0].batch_size",
        "from 1 to 10000",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "a:b", batch = "yes" }]\n',
        2,
        "pipeline.bill.steps[0].batch",
        "expected true or false",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", run = "a:b", stdin = "json" }]\n',
        2,
        "pipeline.bill.steps[0].stdin",
        "together with command",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", command = ["{customer}"] }]\n',
        2,
        "pipeline.bill.steps[0].command",
        "a fixed program",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", command = [""] }]\n',
        2,
        "pipeline.bill.steps[0].command",
        "got nothing",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", command = ["a\\u0000b"] }]\n',
        2,
        "pipeline.bill.steps[0].command[0]",
        "without a NUL",
    ),
    (
        '[pipeline.bill]\nsteps = [{ name = "a", command = ["x"], env = { "A B" = "" } }]\n',
        2,
        "pipeline.bill.steps[0].env.'A B'",
        "environment",
    ),
    (
        QUEUE + PIPELINE + '[worker.w]\nqueue = "order"\npipeline = "bill"\n',
        6,
        "worker.w.queue",
        "did you mean orders?",
    ),
    (
        QUEUE + PIPELINE + '[worker.w]\nqueue = "orders"\npipeline = "bil"\n',
        7,
        "worker.w.pipeline",
        "did you mean bill?",
    ),
    (QUEUE + PIPELINE + '[worker.w]\npipeline = "bill"\n', 5, "worker.w.queue", "missing"),
    (
        QUEUE + PIPELINE + '[worker.w]\nqueue = "orders"\npipeline = "bill"\nconcurrency = 0\n',
        8,
        "worker.w.concurrency",
        "from 1",
    ),
    (
        QUEUE + PIPELINE + '[worker.w]\nqueue = "orders"\npipeline = "bill"\nconcurrency = true\n',
        8,
        "worker.w.concurrency",
        "from 1",
    ),
    (
        QUEUE + PIPELINE + '[worker.w]\nqueue = "orders"\npipeline = "bill"\nengine = "sprak"\n',
        8,
        "worker.w.engine",
        "did you mean spark?",
    ),
    (
        QUEUE + PIPELINE + '[worker.w]\nqueue = "orders"\npipeline = "bill"\nreasons.Foo = "timeout"\n',
        8,
        "worker.w.reasons.Foo",
        '"unknown"',
    ),
    (
        QUEUE
        + PIPELINE
        + '[worker.w]\nqueue = "orders"\npipeline = "bill"\nisolate = "thread"\nmemory_limit = "1GiB"\n',
        9,
        "worker.w.memory_limit",
        "threads share their memory",
    ),
    (
        QUEUE
        + '[pipeline.p]\nsteps = [{ name = "mail", command = ["x", "{custmer}"] }]\n[worker.w]\nqueue = "orders"\npipeline = "p"\n',
        4,
        "pipeline.p.steps[0].command",
        "did you mean customer?",
    ),
    (
        QUEUE
        + '[pipeline.p]\nsteps = [{ name = "m", command = ["x"], env.TO = "{to}" }]\n[worker.w]\nqueue = "orders"\npipeline = "p"\n',
        4,
        "pipeline.p.steps[0].env.TO",
        "has no field 'to'",
    ),
]


@pytest.mark.parametrize(
    ("text", "line", "path", "what"),
    MISTAKES,
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_a_mistake_is_told_where_it_stands(text: str, line: int, path: str, what: str) -> None:
    found = problems_of(text)
    assert [(found_line, found_path) for found_line, found_path, _ in found] == [(line, path)]
    assert what in found[0][2]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_lines() -> None:
    text = "".join(f'[queue.q{number}]\nvisibility_timeout = "soon"\n' for number in range(5))
    found = problems_of(text)
    assert [line for line, _, _ in found] == [2, 4, 6, 8, 10]


def test_the_error_has_the_first_mistake_as_its_message_and_the_others_as_notes() -> None:
    with pytest.raises(RunbookInvalid) as refused:
        check_text("[queue.a]\nx = 1\n[queue.b]\ny = 2\n", "toml", file="shop.toml")
    assert refused.value.message.startswith("shop.toml:2: queue.a.x: unknown key")
    assert refused.value.__notes__[0].startswith("shop.toml:4: queue.b.y: unknown key")


def test_a_word_in_doubled_braces_and_other_braces_are_no_fields() -> None:
    step = '{ name = "m", command = ["awk", "{{print}}", "{ print $1 }", "{\\"a\\":{\\"b\\":1}}", "{customer}"] }'
    check_text(
        QUEUE + f'[pipeline.p]\nsteps = [{step}]\n[worker.w]\nqueue = "orders"\npipeline = "p"\n', "toml"
    )


def test_a_queue_that_names_no_fields_may_have_any() -> None:
    check_text(
        '[queue.q]\n[pipeline.p]\nsteps = [{ name = "m", command = ["x", "{any}"] }]\n[worker.w]\nqueue = "q"\npipeline = "p"\n',
        "toml",
    )


def test_null_says_that_a_key_should_be_left_out() -> None:
    found = problems_of('{"queue": {"orders": {"ttl": null}}}', "json")
    assert "leave the key out" in found[0][2]


def test_text_that_has_no_utf8_form_is_refused() -> None:
    found = problems_of(
        json.dumps({"pipeline": {"p": {"steps": [{"name": "a", "command": ["\ud800"]}]}}}), "json"
    )
    assert found[0][1] == "pipeline.p.steps[0].command[0]"


def test_more_steps_than_progress_has_bits_are_refused() -> None:
    steps = [{"name": f"s{number}", "run": "a:b"} for number in range(MAX_STEPS + 1)]
    assert problems_of(json.dumps({"pipeline": {"p": {"steps": steps}}}), "json")[0][1] == "pipeline.p"
    check_text(json.dumps({"pipeline": {"p": {"steps": steps[:MAX_STEPS]}}}), "json")


def test_an_empty_file_is_a_runbook(tmp_path: Path) -> None:
    for syntax in ("toml", "hcl"):
        (tmp_path / f"empty.{syntax}").write_text("")
        assert read_runbook([tmp_path / f"empty.{syntax}"]).runbook.queues == {}


class TestSeveralFiles:
    def test_they_make_up_one_runbook(self, tmp_path: Path) -> None:
        (tmp_path / "queues.toml").write_text('project = "shop"\n' + QUEUE)
        pipeline = 'pipeline "bill" {\n  step "parse" { run = "a:b" }\n}\n'
        (tmp_path / "work.hcl").write_text(
            pipeline + 'worker "w" {\n  queue = "orders"\n  pipeline = "bill"\n}\n'
        )
        found = read_runbook([tmp_path / "queues.toml", tmp_path / "work.hcl"]).runbook
        assert (found.project, list(found.queues), list(found.pipelines), list(found.workers)) == (
            "shop",
            ["orders"],
            ["bill"],
            ["w"],
        )

    def test_a_name_that_two_of_them_define_is_refused_and_both_places_are_named(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "a.toml").write_text("[queue.x]\n" + QUEUE)
        (tmp_path / "b.json").write_text('{"queue":\n {"orders": {}}}')
        with pytest.raises(RunbookInvalid) as refused:
            read_runbook([tmp_path / "a.toml", tmp_path / "b.json"])
        [(file, line, path, what)] = refused.value.problems
        assert (file, line, path) == (str(tmp_path / "b.json"), 2, "queue.orders")
        assert what == f"defined twice, first in {tmp_path / 'a.toml'}:2"

    def test_equal_names_of_different_kinds_are_fine(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text(
            "[queue.bill]\n" + PIPELINE + '[worker.bill]\nqueue = "bill"\npipeline = "bill"\n'
        )
        assert read_runbook([tmp_path / "a.toml"]).runbook.workers["bill"].queue == "bill"

    def test_projects_that_differ_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text('project = "shop"\n')
        (tmp_path / "b.toml").write_text('\nproject = "mail"\n')
        with pytest.raises(RunbookInvalid) as refused:
            read_runbook([tmp_path / "a.toml", tmp_path / "b.toml"])
        assert refused.value.problems[0][1:3] == (2, "project")

    def test_the_mistakes_of_a_broken_file_do_not_hide_those_of_another(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text("[queue\n")
        (tmp_path / "b.toml").write_text("[queue.q]\nx = 1\n")
        (tmp_path / "c.yaml").write_text("")
        with pytest.raises(RunbookInvalid) as refused:
            read_runbook([tmp_path / name for name in ("a.toml", "b.toml", "c.yaml", "missing.hcl")])
        assert [Path(file).name for file, *_ in refused.value.problems] == [
            "a.toml",
            "b.toml",
            "c.yaml",
            "missing.hcl",
        ]

    def test_a_project_given_beside_the_files_stands_above_them(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text('project = "shop"\n')
        assert read_runbook([tmp_path / "a.toml"], project="staging").runbook.project == "staging"


class TestHooks:
    def test_a_file_is_found_beside_the_runbook_and_read_into_it(self, tmp_path: Path) -> None:
        (tmp_path / "hooks").mkdir()
        (tmp_path / "hooks" / "orders.lua").write_text("function on_enqueue(msg) return {} end\n")
        (tmp_path / "a.toml").write_text('[queue.orders]\nhooks = { on_enqueue = "hooks/orders.lua" }\n')
        found = read_runbook([tmp_path / "a.toml"]).runbook.queues["orders"]
        assert found.options["on_enqueue"] == "function on_enqueue(msg) return {} end\n"

    @pytest.mark.parametrize("content", [b"", b"\xff", b"-" * 70_000])
    def test_a_file_that_holds_no_script_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.lua").write_bytes(content)
        (tmp_path / "a.toml").write_text('[queue.orders]\nhooks = { on_enqueue = "a.lua" }\n')
        with pytest.raises(RunbookInvalid, match=r"queue\.orders\.hooks\.on_enqueue"):
            read_runbook([tmp_path / "a.toml"])

    def test_a_directory_is_no_script(self, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_text('[queue.orders]\nhooks = { on_enqueue = "." }\n')
        with pytest.raises(RunbookInvalid, match="to be a file"):
            read_runbook([tmp_path / "a.toml"])


class TestRetry:
    def retry_of(self, text: str) -> dict[str, object]:
        retry: dict[str, object] = (
            check_text(f"[queue.orders]\n{text}\n", "toml").runbook.queues["orders"].options["retry"]
        )
        return retry

    def test_without_retry_the_first_failure_kills(self) -> None:
        assert self.retry_of("") == {"policy": "none"}

    def test_with_a_hook_on_failure_and_no_retry_an_open_breaker_means_again_at_once(self) -> None:
        assert self.retry_of('hooks.on_failure = "function on_failure(msg) return {} end"') == {
            "policy": "immediate"
        }

    def test_the_short_form_is_the_fixed_policy(self) -> None:
        assert self.retry_of('retry = { attempts = 3, cooldown = "30s" }') == {
            "policy": "fixed",
            "attempts": 3,
            "cooldown": "30s",
            "jitter": "none",
        }

    def test_the_short_form_without_a_cooldown_tries_again_at_once(self) -> None:
        assert self.retry_of("retry = { attempts = 3 }") == {"policy": "immediate", "attempts": 3}

    @pytest.mark.parametrize("text", ['retry = { cooldown = "30s" }', "retry = {}"])
    def test_the_short_form_without_attempts_has_0_and_a_warning(self, text: str) -> None:
        assert self.retry_of(text)["attempts"] == 0
        [warning] = check_text(f"[queue.orders]\n{text}\n", "toml").warnings
        assert (warning.line, warning.path) == (2, "queue.orders.retry.attempts")

    def test_what_a_policy_implies_is_a_warning_at_its_line(self) -> None:
        [warning, other] = check_text('[queue.orders]\n\nretry = "immediate"\n', "toml").warnings
        assert (warning.line, warning.path) == (3, "queue.orders.retry")
        assert "no limit on attempts" in warning.what
        assert "hammered" in other.what

    def test_a_ceiling_ends_what_a_policy_would_not(self) -> None:
        assert check_text('[queue.orders]\nmax_attempts = 5\nretry = "immediate"\n', "toml").warnings == ()
