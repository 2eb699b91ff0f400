"""Both engines give the same answers to the same run, and the laws hold after every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock, open_in_memory
from fairlead.testing.engine import replace_hooks
from tests.conformance.engines.memory_sizes import memory_sizes
from tests.conformance.engines.running import Run, Side, for_side
from tests.conformance.engines.stand_in_hooks import StandInHooks

STEPS = 120
#: More with: python -m tests.conformance.engines --runs 1000
SEEDS = range(30)


@contextmanager
def both(store: KeyValueStore) -> Iterator[tuple[Side, Side, Engine]]:
    old_clock, new_clock = ManualClock(), ManualClock()
    with open_in_memory(clock=old_clock) as broker:
        engine = Engine(store, clock=new_clock)
        replace_hooks(broker, StandInHooks())
        engine.hooking.hooks = StandInHooks()  # type: ignore[assignment]
        yield Side(broker.do, old_clock), Side(engine.do, new_clock), engine
        engine.close()


def run_both(seed: int, store: KeyValueStore, *, laws_every: int = 1) -> None:
    run = Run(seed, has_scripts=True, forgets=True, keeps=True)
    replay = f"python -m pytest tests.conformance.engines -k 'seed{seed}-'"
    with memory_sizes(seed), both(store) as (old, new, engine):
        for request in run.first_steps():
            assert old.carry_out(request) == new.carry_out(request)
        for at in range(STEPS):
            step = run.next_step(len(old.deliveries))
            if isinstance(step, int):
                old.clock.advance(ms=step)
                new.clock.advance(ms=step)
            else:
                expected = old.carry_out(for_side(step, old))
                got = new.carry_out(for_side(step, new))
                assert got == expected, f"step {at} of seed {seed}, {type(step).__name__}; replay: {replay}"
            if at % laws_every == 0:
                assert broken_laws(engine) == [], f"step {at} of seed {seed}; replay: {replay}"


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}-")
def test_both_engines_answer_alike_in_memory(seed: int) -> None:
    run_both(seed, DictionaryStore())


@pytest.mark.parametrize("seed", range(1000, 1004), ids=lambda seed: f"seed{seed}-")
def test_both_engines_answer_alike_on_rocksdb(tmp_path: Path, seed: int) -> None:
    run_both(seed, RocksKeyValueStore.open(tmp_path / "data"), laws_every=10)
