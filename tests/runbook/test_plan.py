"""What a plan says: created, changed field by field, left alone, orphaned."""

from __future__ import annotations

import pytest

from fairlead.errors import RunbookInvalid
from fairlead.model.handles import check_progress
from fairlead.model.queue import QueueConfig, read_queue_options
from fairlead.model.views import QueueInfo
from fairlead.runbook.check import check_text
from fairlead.runbook.model import MAX_STEPS, TAKEN_OPTIONS, Runbook
from fairlead.runbook.plan import FieldChange, PlanEntry, RunbookPlan, make_plan
from fairlead.runbook.progress_bits import with_progress_bits


def runbook(text: str) -> Runbook:
    return check_text(text, "toml").runbook


def running(name: str, **options: object) -> QueueInfo:
    return QueueInfo(name, read_queue_options(options, QueueConfig()), 0, False, f"{name}.dlq", None)


def entry(plan: RunbookPlan, name: str) -> PlanEntry:
    [found] = [entry for entry in plan.entries if entry.name == name]
    return found


ORDERS = '[queue.orders]\nvars = ["customer"]\nretry = { attempts = 3, cooldown = "30s" }\n'
SHOP = 'project = "shop"\n' + ORDERS
APPLIED = {"retry": {"attempts": 3, "cooldown": "30s"}, "dedup": "live", "retain_completed": "12h"}


def test_a_queue_that_is_not_there_is_created_with_all_its_options() -> None:
    found = entry(make_plan(runbook(SHOP), [], None), "shop/orders")
    assert found.action == "create"
    assert found.options == {
        "retry": {"policy": "fixed", "attempts": 3, "cooldown": "30s", "jitter": "none"},
        "dedup": "live",
        "retain_completed": "12h",
    }


def test_a_queue_that_is_as_it_should_be_is_left_alone() -> None:
    plan = make_plan(runbook(SHOP), [running("shop/orders", **APPLIED)], runbook(SHOP))
    assert (entry(plan, "shop/orders").action, plan.nothing_to_do) == ("keep", True)


def test_a_change_is_told_field_by_field_and_only_what_changed_is_sent() -> None:
    after = runbook(SHOP.replace("attempts = 3", "attempts = 5") + 'visibility_timeout = "2m"\n')
    found = entry(make_plan(after, [running("shop/orders", **APPLIED)], runbook(SHOP)), "shop/orders")
    assert set(found.changes) == {
        FieldChange("retry.attempts", 3, 5),
        FieldChange("visibility_timeout", "30s", "2m"),
    }
    assert found.options is not None
    assert set(found.options) == {"retry", "visibility_timeout"}


def test_an_option_that_is_no_longer_written_goes_back_to_its_default() -> None:
    found = entry(
        make_plan(runbook(SHOP), [running("shop/orders", **APPLIED, max_messages=9)], runbook(SHOP)),
        "shop/orders",
    )
    assert found.changes == (FieldChange("max_messages", 9, 0),)
    assert found.options == {"max_messages": 0}


def test_another_kind_of_policy_shows_the_fields_that_come_and_go() -> None:
    after = runbook('[queue.orders]\nretry = { policy = "exponential", attempts = 3 }\n')
    changes = entry(make_plan(after, [running("orders", **APPLIED)], None), "orders").changes
    fields = {change.field for change in changes if change.field.startswith("retry")}
    assert fields == {"retry.policy", "retry.base", "retry.cap", "retry.factor", "retry.cooldown"}
    assert FieldChange("retry.cooldown", "30s", None) in changes


def test_what_only_the_runbook_knows_of_a_queue_is_compared_with_the_runbook_in_force() -> None:
    after = runbook(ORDERS.replace('["customer"]', '["customer", "amount"]'))
    found = entry(make_plan(after, [running("orders", **APPLIED)], runbook(ORDERS)), "orders")
    assert (found.action, found.changes, found.options) == (
        "change",
        (FieldChange("vars", ["customer"], ["customer", "amount"]),),
        {},
    )


def test_a_queue_of_the_project_that_is_not_defined_is_an_orphan_whoever_made_it() -> None:
    plan = make_plan(
        runbook(SHOP),
        [
            running("shop/orders", **APPLIED),
            running("shop/old"),
            running("shopping/x"),
            running("shop/old.dlq"),
        ],
        None,
    )
    assert [(found.name, found.note) for found in plan.of("orphan")] == [
        ("shop/old", "fairlead queue delete shop/old")
    ]


def test_outside_of_projects_only_what_the_runbook_in_force_defined_is_an_orphan() -> None:
    before = runbook(ORDERS + "[queue.old]\n")
    plan = make_plan(
        runbook(ORDERS), [running("orders", **APPLIED), running("old"), running("by_hand")], before
    )
    assert [found.name for found in plan.of("orphan")] == ["old"]


def test_a_queue_that_moves_elsewhere_leaves_its_messages_behind_as_an_orphan() -> None:
    after = runbook('project = "shop"\n[queue.orders]\ntype = "external"\nlist = ["ls"]\ntake = ["true"]\n')
    plan = make_plan(after, [running("shop/orders", **APPLIED)], runbook(SHOP))
    assert [found.action for found in plan.entries if found.name == "shop/orders"] == ["change", "orphan"]


def test_an_external_queue_that_is_no_longer_defined_goes_with_its_runbook() -> None:
    before = runbook('[queue.jira]\ntype = "external"\nlist = ["ls"]\ntake = ["true"]\n')
    assert [found.name for found in make_plan(runbook(""), [], before).of("remove")] == ["jira"]


def test_an_external_queue_sends_nothing_to_the_engine() -> None:
    plan = make_plan(runbook('[queue.jira]\ntype = "external"\nlist = ["ls"]\ntake = ["true"]\n'), [], None)
    assert (entry(plan, "jira").action, entry(plan, "jira").options) == ("create", None)


def test_the_queue_for_what_is_taken_is_made_once_and_then_left_as_it_is() -> None:
    jira = runbook('project = "shop"\n[queue.jira]\ntype = "external"\nlist = ["ls"]\ntake = ["true"]\n')
    made = entry(make_plan(jira, [], None), "shop/jira.taken")
    assert (made.action, made.options) == ("create", TAKEN_OPTIONS)
    there = make_plan(jira, [running("shop/jira.taken", visibility_timeout="1h")], jira)
    assert (entry(there, "shop/jira.taken").action, there.nothing_to_do, there.of("orphan")) == (
        "keep",
        True,
        [],
    )


PIPELINE = '[pipeline.bill]\nsteps = [{ name = "parse", run = "a:b" }, { name = "mail", run = "a:d" }]\n'


def test_a_step_put_in_front_is_a_change_of_the_order_and_of_nothing_else() -> None:
    after = PIPELINE.replace("[{", '[{ name = "look", run = "a:look" }, {')
    found = entry(make_plan(runbook(after), [], runbook(PIPELINE)), "bill")
    assert found.changes == (
        FieldChange("steps", ["parse", "mail"], ["look", "parse", "mail"]),
        FieldChange("step.look.run", None, "a:look"),
    )


def test_pipelines_and_workers_that_are_no_longer_defined_are_removed() -> None:
    before = runbook("[queue.q]\n" + PIPELINE + '[worker.w]\nqueue = "q"\npipeline = "bill"\n')
    plan = make_plan(
        runbook("[queue.q]\n"), [running("q", retry="none", dedup="live", retain_completed="12h")], before
    )
    assert {(found.kind, found.name) for found in plan.of("remove")} == {
        ("pipeline", "bill"),
        ("worker", "w"),
    }
    assert not plan.nothing_to_do


class TestProgressBits:
    def steps(self, *names: str) -> Runbook:
        return runbook(
            "[pipeline.p]\nsteps = ["
            + ", ".join(f'{{ name = "{name}", run = "a:b" }}' for name in names)
            + "]\n"
        )

    def test_the_bits_of_the_seed_are_not_given_away(self) -> None:
        bits = self.steps(*(f"s{number}" for number in range(MAX_STEPS))).pipelines["p"].bits
        assert len(set(bits.values())) == MAX_STEPS
        assert not any(mask & (1 | 2 | 4 | 32768) for mask in bits.values())
        assert all(check_progress(mask) == mask for mask in bits.values())
        assert check_progress(sum(bits.values()) | 1 | 2 | 4 | 32768) == (1 << 63) - 1

    def test_a_step_keeps_its_bit_when_others_come_and_go(self) -> None:
        before = self.steps("parse", "charge", "mail")
        after = with_progress_bits(self.steps("look", "mail"), before).pipelines["p"].bits
        assert after["mail"] == before.pipelines["p"].bits["mail"]
        assert after["look"] not in before.pipelines["p"].bits.values()

    def test_the_bit_of_a_step_that_is_gone_is_never_given_to_another(self) -> None:
        in_force = self.steps("parse")
        for number in range(MAX_STEPS - 1):
            in_force = with_progress_bits(self.steps(f"s{number}"), in_force)
        with pytest.raises(RunbookInvalid, match="no progress bit is left for 'one_more'"):
            with_progress_bits(self.steps("one_more"), in_force)
        assert (
            with_progress_bits(self.steps("parse"), in_force).pipelines["p"].bits["parse"]
            == self.steps("parse").pipelines["p"].bits["parse"]
        )
