"""How much memory holds changes no answer and no order of delivery, and the laws hold after every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from tests.conformance.engines.memory_sizes import eager_evacuation, evacuate, small_sizes
from tests.conformance.engines.running import Run, Side, for_side
from tests.conformance.engines.stand_in_hooks import StandInHooks

STEPS = 120
#: More with: python -m tests.conformance.engines --runs 1000
SEEDS = range(30)

#: A step of a run, which each side turns into a request with its own ids; or milliseconds that pass.
Step = Any


@contextmanager
def opened(store: KeyValueStore) -> Iterator[tuple[Side, Engine]]:
    clock = ManualClock()
    engine = Engine(store, clock=clock)
    engine.hooking.hooks = StandInHooks()  # type: ignore[assignment]
    yield Side(engine.do, clock), engine
    engine.close()


def run_with_all_in_memory(run: Run) -> tuple[list[Step], list[Any]]:
    """The steps that the run draws, and their answers."""
    steps, answers = list[Step](run.first_steps()), list[Any]()
    with opened(DictionaryStore()) as (side, _):
        for request in steps:
            answers.append(side.carry_out(request))
        for _ in range(STEPS):
            step = run.next_step(len(side.deliveries))
            steps.append(step)
            answers.append(take(side, step))
    return steps, answers


def take(side: Side, step: Step) -> Any:
    if isinstance(step, int):
        side.clock.advance(ms=step)
        return None
    return side.carry_out(for_side(step, side))


def run_with_little_in_memory(seed: int, store: KeyValueStore, *, laws_every: int = 1) -> None:
    steps, answers = run_with_all_in_memory(Run(seed, has_scripts=True, forgets=True, keeps=True))
    with small_sizes(seed), eager_evacuation():
        repeat_run(seed, steps, answers, store, laws_every=laws_every, evacuates=seed % 2 == 0)


def repeat_run(
    seed: int,
    steps: list[Step],
    answers: list[Any],
    store: KeyValueStore,
    *,
    laws_every: int,
    evacuates: bool = False,
) -> None:
    """The same steps on another engine give the same answers."""
    replay = f"python -m pytest tests/conformance/engines -k 'seed{seed}-'"
    with opened(store) as (side, engine):
        for at, (step, expected) in enumerate(zip(steps, answers, strict=True)):
            got = take(side, step)
            assert got == expected, f"step {at} of seed {seed}, {type(step).__name__}; replay: {replay}"
            if evacuates:
                evacuate(engine)
            if at % laws_every == 0:
                assert broken_laws(engine) == [], f"step {at} of seed {seed}; replay: {replay}"


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}-")
def test_what_memory_holds_changes_no_answer(seed: int) -> None:
    run_with_little_in_memory(seed, DictionaryStore())


@pytest.mark.parametrize("seed", range(1000, 1004), ids=lambda seed: f"seed{seed}-")
def test_what_memory_holds_changes_no_answer_on_rocksdb(tmp_path: Path, seed: int) -> None:
    run_with_little_in_memory(seed, RocksKeyValueStore.open(tmp_path / "data"), laws_every=10)
