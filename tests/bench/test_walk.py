"""The walk of a message counts what is called in our sources, and nothing else."""

from __future__ import annotations

from pathlib import Path

from bench.walk import STEPS, Tracer, Walk, walk_everywhere
from fairlead.model.durations import to_ms


def test_a_walk_counts_each_call_in_our_sources_once() -> None:
    tracer = Tracer()
    with tracer.following(), tracer.walking() as walk:
        to_ms("2s", "wait")
        sorted([3, 1, 2], key=abs)
    assert walk.calls.count(("model/durations.py", "to_ms")) == 1
    assert {file for file, _ in walk.calls} == {"model/durations.py"}


def test_changes_are_steps_into_another_file() -> None:
    assert Walk([("a.py", "f"), ("a.py", "g"), ("b.py", "h"), ("a.py", "f")]).changes == 2


def test_both_sides_of_a_connection_are_counted(tmp_path: Path) -> None:
    walks = walk_everywhere(tmp_path)
    assert all(list(steps) == list(STEPS) for steps in walks.values())
    files = {where: {file for file, _ in steps["enqueue"].calls} for where, steps in walks.items()}
    assert any(file.startswith("store/kv/rocks") for file in files["in process"])
    assert not any(file.startswith(("client/", "server/")) for file in files["in process"])
    assert all(
        any(file.startswith(part) for file in files["through Redis"])
        for part in ("wire/packed.py", "server/resp/", "store/kv/rocks")
    )
