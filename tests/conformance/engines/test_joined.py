"""Requests that join one transaction end like the same requests one by one, for every verb and row type."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from fairlead.verbs.inspect import Stats
from fairlead.verbs.staging import StagingPublish, StagingStage
from tests.conformance.engines.memory_sizes import memory_sizes
from tests.conformance.engines.running import Run, Side, for_side

STEPS = 120
#: In a compared answer of `Stats`, the totals and what else is counted by commits begin here.
_TOTALS = 4


def new_side(store: KeyValueStore) -> tuple[Side, Engine]:
    clock = ManualClock()
    # Both engines draw the same jitter.
    engine = Engine(store, clock=clock, rng=Random(0))
    return Side(engine.do, clock), engine


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(40), ids=lambda seed: f"seed{seed}-")
def test_requests_of_one_transaction_end_like_single_ones(seed: int) -> None:
    with memory_sizes(seed):
        compare_joined(seed, DictionaryStore())


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4000, 4003), ids=lambda seed: f"seed{seed}-")
def test_requests_of_one_transaction_end_like_single_ones_on_rocksdb(tmp_path: Path, seed: int) -> None:
    with memory_sizes(seed):
        compare_joined(seed, RocksKeyValueStore.open(tmp_path / "data"))


def compare_joined(seed: int, store: KeyValueStore) -> None:
    run, random = Run(seed, keeps=True, closes=seed % 3 == 1), Random(seed)
    (alone, _), (joined, engine) = new_side(DictionaryStore()), new_side(store)
    for request in run.first_steps():
        assert alone.carry_out(request) == joined.carry_out(request)
    at = 0
    while at < STEPS:
        wanted, group, passed_ms = random.choice((1, 2, 2, 5, 12)), [], 0
        while len(group) < wanted:
            step = run.next_step(len(alone.deliveries))
            at += 1
            if isinstance(step, int):
                # Time stands still within a transaction.
                passed_ms = step
                break
            request = for_side(step, alone)
            group.append(
                (step, alone.carry_out(request), isinstance(request, (StagingStage, StagingPublish)))
            )
        if any(is_staging for _, _, is_staging in group):
            # Pages that are staged in a transaction are read when it is written.
            for step, expected, _ in group:
                assert joined.carry_out(for_side(step, joined)) == expected
        else:
            with engine.transaction():
                for step, expected, _ in group:
                    check(joined, step, expected, f"step {at} of seed {seed}")
        assert broken_laws(engine) == [], f"step {at} of seed {seed}"
        alone.clock.advance(ms=passed_ms)
        joined.clock.advance(ms=passed_ms)
    engine.close()


def check(joined: Side, step: Any, expected: Any, where: str) -> None:
    got = joined.carry_out(for_side(step, joined))
    if isinstance(step, Stats):
        # What passed is counted when it is written, so that no lost transaction counts.
        got, expected = got[:_TOTALS], expected[:_TOTALS]
    assert got == expected, f"{where}, {type(step).__name__}"
