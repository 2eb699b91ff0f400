"""Files that change while they are applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Broker
from fairlead.cli import worker
from fairlead.cli.global_options import GlobalOptions
from fairlead.testing import open_in_memory

ONE = '[queue.one]\n[pipeline.p]\nsteps = [{ name = "echo", command = ["true"] }]\n[worker.w]\nqueue = "one"\npipeline = "p"\n'


@pytest.fixture
def broker() -> Iterator[Broker]:
    with open_in_memory() as broker:
        yield broker


def test_a_change_saved_while_the_file_is_applied_is_applied_next(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runbook.toml"
    file.write_text(ONE)
    apply_plan = worker.apply_plan

    def and_save(plan: object, target: object) -> object:
        done = list(apply_plan(plan, target))  # type: ignore[arg-type]
        file.write_text(ONE.replace("one", "two"))
        monkeypatch.setattr(worker, "apply_plan", apply_plan)
        return done

    monkeypatch.setattr(worker, "current_options", GlobalOptions)
    monkeypatch.setattr(worker, "apply_plan", and_save)
    source = worker._RunbookSource(broker, [file])
    assert set(source.apply().queues) == {"one"}
    changed = source.changed()
    assert changed is not None
    assert set(changed.queues) == {"two"}
    assert source.changed() is None
