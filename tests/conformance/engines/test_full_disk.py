"""The disk is full at every step of every verb and of the timer: nothing is lost, memory is what the store has, and
the same request works once there is room.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.errors import StoreFull
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.operate import Done, Drain, Drop, Prune
from tests.conformance.engines.memory_sizes import memory_sizes
from tests.conformance.engines.running import Called, Run, Side, for_side
from tests.conformance.engines.test_reopening import Ledger, completed_of, drain, read_members

STEPS = 60
#: Of what these removed before the disk was full, no answer tells: they meet it at their first step only.
REMOVES = (Done, Drain, Drop, Prune)


def run_on_full_disk(seed: int, inner: KeyValueStore) -> int:
    """Returns how often the disk was full."""
    store, clock = FaultyStore(inner), ManualClock()
    engine = Engine(store, clock=clock)
    run, side, ledger, struck = (
        Run(seed, keeps=True, closes=seed % 2 == 1),
        Side(engine.do, clock),
        Ledger(),
        0,
    )

    def meet(call: Callable[[], Any], *, most: int = 1000) -> Any:
        """Call until no full disk refuses the call: at first it meets one at its first step, then at its second, and
        so on.
        """
        nonlocal struck
        for nth in range(1, most + 1):
            store.arm(nth, "fail", only=("write", "check_room"))
            answer = call()
            struck += store.struck
            assert broken_laws(engine) == [], f"seed {seed}: the disk was full at step {nth}"
            if not _is_refused(answer):
                return answer
        store.arm(0, "fail")
        return call()

    for request in run.first_steps():
        ledger.note(request, meet(partial(side.carry_out, request)))
    for _ in range(STEPS):
        step = run.next_step(len(side.deliveries))
        if isinstance(step, int):
            with suppress(StoreFull):
                clock.advance(ms=step)
            meet(partial(_run_due, engine))
            continue
        request = for_side(step, side)
        members, most = read_members(engine, request), 1 if _removes(request) else 1000
        ledger.note(request, meet(partial(side.carry_out, request), most=most))
        ledger.completed.update(side.names[raw_id] for raw_id in completed_of(engine, members))
    store.arm(0, "fail")
    drain(engine, side, ledger)
    assert ledger.confirmed - ledger.mortal <= set(ledger.completed) <= ledger.confirmed, f"seed {seed}"
    assert set(ledger.completed.values()) <= {1}, f"seed {seed}"
    assert broken_laws(engine) == []
    engine.close()
    return struck


def _run_due(engine: Engine) -> tuple[str] | None:
    try:
        engine.run_due()
    except StoreFull as full:
        return (type(full).__name__,)
    return None


def _is_refused(answer: Any) -> bool:
    return isinstance(answer, tuple) and answer[:1] == (StoreFull.__name__,)


def _removes(request: Request[Any] | Called) -> bool:
    return isinstance(request.request if isinstance(request, Called) else request, REMOVES)


#: In the last two, requests are refused that have read messages.
@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", [*range(12), 100_019, 100_023])
def test_a_disk_that_is_full_at_every_step_loses_and_doubles_nothing(seed: int) -> None:
    with memory_sizes(seed):
        assert run_on_full_disk(seed, DictionaryStore()) > 20


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [3000, 3001])
def test_a_disk_that_is_full_at_every_step_loses_nothing_on_rocksdb(tmp_path: Path, seed: int) -> None:
    with memory_sizes(seed):
        assert run_on_full_disk(seed, RocksKeyValueStore.open(tmp_path / "data")) > 20
