"""One runbook, three syntaxes, one meaning."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.model.queue import QueueConfig, read_queue_options
from fairlead.model.views import QueueInfo
from fairlead.runbook.check import check_text
from fairlead.runbook.model import Runbook, dump_runbook, load_runbook
from fairlead.runbook.normal_form import as_toml, normal_form
from fairlead.runbook.plan import make_plan
from tests.runbook.runbooks import persisted, runbooks
from tests.runbook.writers import write
from tests.sampling import sampled

SYNTAXES = ("toml", "hcl", "json")
chances = st.integers(0, 2**32).map(Random)


@given(tree=runbooks(), chance=chances)
@settings(max_examples=sampled(20, of=80), deadline=None)
def test_a_runbook_means_the_same_in_every_syntax(tree: dict[str, Any], chance: Random) -> None:
    read = {syntax: check_text(write(tree, syntax, chance), syntax).runbook for syntax in SYNTAXES}
    assert read["toml"] == read["hcl"] == read["json"]
    texts = {dump_runbook(runbook) for runbook in read.values()}
    assert len(texts) == 1


@given(before=runbooks(), after=runbooks(), chance=chances)
@settings(max_examples=sampled(10, of=40), deadline=None)
def test_a_plan_is_the_same_whatever_the_runbook_was_written_in(
    before: dict[str, Any], after: dict[str, Any], chance: Random
) -> None:
    after = {**after, "project": before.get("project", "p")}
    in_force = check_text(write(before, "json", chance), "json", project=after["project"]).runbook
    running = _running(in_force)
    plans = [
        make_plan(check_text(write(after, syntax, chance), syntax).runbook, running, in_force)
        for syntax in SYNTAXES
    ]
    assert plans[0] == plans[1] == plans[2]


@given(tree=runbooks(), chance=chances)
@settings(max_examples=sampled(20, of=80), deadline=None)
def test_the_normal_form_reads_back_as_the_same_runbook(tree: dict[str, Any], chance: Random) -> None:
    runbook = check_text(write(tree, "json", chance), "json").runbook
    form = normal_form(runbook)
    assert check_text(as_toml(form), "toml").runbook == runbook
    assert check_text(write(form, "json", chance), "json").runbook == runbook
    assert normal_form(check_text(write(form, "hcl", chance), "hcl").runbook) == form


@given(tree=runbooks(), chance=chances)
@settings(max_examples=sampled(10, of=40), deadline=None)
def test_what_is_stored_reads_back_as_the_same_runbook(tree: dict[str, Any], chance: Random) -> None:
    runbook = check_text(write(tree, "toml", chance), "toml").runbook
    assert load_runbook(dump_runbook(runbook)) == runbook


@given(tree=runbooks(), chance=chances)
@settings(max_examples=sampled(10, of=40), deadline=None)
def test_what_was_applied_leaves_nothing_to_do(tree: dict[str, Any], chance: Random) -> None:
    runbook = check_text(write(tree, "hcl", chance), "hcl").runbook
    first = make_plan(runbook, [], None)
    taken = sum(queue.kind == "external" for queue in runbook.queues.values())
    assert len(first.of("create")) == len(tree["queue"]) + taken + len(tree["pipeline"]) + len(tree["worker"])
    again = make_plan(runbook, _running(runbook), load_runbook(dump_runbook(first.runbook)))
    assert again.nothing_to_do
    assert not again.of("orphan")


@given(queue=persisted(), chance=chances)
@settings(max_examples=sampled(10, of=40), deadline=None)
def test_the_options_of_a_queue_are_those_the_engine_takes(queue: dict[str, Any], chance: Random) -> None:
    spec = check_text(write({"queue": {"orders": queue}}, "toml", chance), "toml").runbook.queues["orders"]
    config = read_queue_options(spec.options, QueueConfig())
    if queue.get("visibility_timeout"):
        assert config == read_queue_options({"visibility_timeout": queue["visibility_timeout"]}, config)
    if isinstance(queue.get("retry"), dict) and "policy" in queue["retry"]:
        assert config == read_queue_options({"retry": queue["retry"]}, config)


def _running(runbook: Runbook) -> list[QueueInfo]:
    """What an engine has after it was told to make these queues."""
    made = {
        entry.name: entry.options
        for entry in make_plan(runbook, [], None).of("create")
        if entry.options is not None
    }
    return [
        QueueInfo(name, read_queue_options(options, QueueConfig()), 0, False, None, None)
        for name, options in made.items()
    ]
