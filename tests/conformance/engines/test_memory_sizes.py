"""How much memory holds changes no answer and no order of delivery, and the laws hold after every step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from fairlead import Complete, NewMessage, Settings
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle
from tests.conformance.engines.memory_sizes import eager_evacuation, evacuate, make_some_cold, small_sizes
from tests.conformance.engines.running import Run, Side, for_side
from tests.conformance.engines.stand_in_hooks import StandInHooks

STEPS = 120
#: More with: python -m tests.conformance.engines --runs 1000
SEEDS = range(30)

_BEHIND = re.compile(r"; \d+ behind it|behind=\d+")

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
    steps, answers = run_with_all_in_memory(
        Run(seed, has_scripts=True, forgets=True, keeps=True, closes=seed % 2 == 1)
    )
    with small_sizes(seed), eager_evacuation():
        repeat_run(seed, steps, answers, store, laws_every=laws_every, evacuates=seed % 2 == 0)


def run_with_chunks_made_cold(seed: int, store: KeyValueStore, *, laws_every: int = 1) -> int:
    """Chunks are hot at first, and become cold at any time. Returns how many did."""
    steps, answers = run_with_all_in_memory(Run(seed, has_scripts=True, forgets=True, keeps=True))
    with small_sizes(seed), patch.object(cold, "HOT_MESSAGES", 1_000_000):
        return repeat_run(seed, steps, answers, store, laws_every=laws_every, makes_cold=True)


def repeat_run(
    seed: int,
    steps: list[Step],
    answers: list[Any],
    store: KeyValueStore,
    *,
    laws_every: int,
    makes_cold: bool = False,
    evacuates: bool = False,
) -> int:
    """The same steps on another engine give the same answers."""
    random, made = Random(f"cold in {seed}"), 0
    replay = f"python -m pytest tests/conformance/engines -k 'seed{seed}-'"
    with opened(store) as (side, engine):
        for at, (step, expected) in enumerate(zip(steps, answers, strict=True)):
            got = take(side, step)
            assert _is_alike(got, expected), (
                f"step {at} of seed {seed}, {type(step).__name__}; replay: {replay}"
            )
            if makes_cold and random.random() < 0.3:
                made += make_some_cold(engine, random)
            if evacuates:
                evacuate(engine)
            if at % laws_every == 0:
                assert broken_laws(engine) == [], f"step {at} of seed {seed}; replay: {replay}"
    return made


def _is_alike(got: Any, expected: Any) -> bool:
    """Messages that a stream has on disk behind its first one are counted by chunk, so some that have left count too."""
    return bool(got == expected) or _BEHIND.sub("", repr(got)) == _BEHIND.sub("", repr(expected))


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}-")
def test_what_memory_holds_changes_no_answer(seed: int) -> None:
    run_with_little_in_memory(seed, DictionaryStore())


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(1000, 1004), ids=lambda seed: f"seed{seed}-")
def test_what_memory_holds_changes_no_answer_on_rocksdb(tmp_path: Path, seed: int) -> None:
    run_with_little_in_memory(seed, RocksKeyValueStore.open(tmp_path / "data"), laws_every=10)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}-")
def test_chunks_that_become_cold_change_no_answer(seed: int) -> None:
    run_with_chunks_made_cold(seed, DictionaryStore())


class Unlisted(dict[Any, Any]):
    """A dictionary that is only asked for single keys."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all keys were looked at")

    def keys(self) -> Any:
        raise AssertionError("all keys were looked at")


def test_a_claim_beside_cold_chunks_does_not_look_at_every_chunk_in_memory() -> None:
    with opened(DictionaryStore()) as (_, engine):
        engine.do(CreateQueue("q"))
        with patch.object(cold, "HOT_MESSAGES", 0):
            engine.do(Enqueue("q", b"cold", fairness_key="other"))
        engine.do(Enqueue("q", b"hot"))
        chunks, engine.memory.chunks = engine.memory.chunks, Unlisted(engine.memory.chunks)
        found = engine.do(Claim("q", 2))
        engine.do(Settle([Complete(one) for one in found]))
        engine.memory.chunks = dict(chunks)
        assert [one.payload for one in found] == [b"cold", b"hot"]


def test_memory_holds_no_more_messages_than_the_settings_say() -> None:
    store, settings = DictionaryStore(), Settings(read_ahead_rows=10)
    for life in range(2):
        engine = Engine(store, clock=ManualClock(), settings=settings)
        if not life:
            engine.do(CreateQueue("q", {"ordering": "none"}))
            for at in range(5):
                engine.do(EnqueueMany("q", [NewMessage(b"%d" % at)] * 4))
        assert (engine.memory.hot_messages, engine.memory.by_name["q"].counts.ready) == (8, 20)
        assert broken_laws(engine) == []
        engine.stop_working()
    claimed = Engine(store, clock=ManualClock(), settings=settings).do(Claim("q", 20))
    assert [one.payload for one in claimed] == [b"%d" % at for at in range(5) for _ in range(4)]
