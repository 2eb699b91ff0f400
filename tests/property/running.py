"""How a state machine is run: on which store, with which seed, and how a failing run is replayed."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from fairlead.testing import Storage
from tests.sampling import sampled


class OnMemoryStore:
    """Mixed into a law: its store lives in memory."""

    store: Any

    def _open(self) -> None:
        self.store = Storage()

    def _reopen(self) -> None:
        self.store = self.store.reopen()


class OnRocksStore:
    """Mixed into a law: its store is a directory of its own, removed at the end of a run."""

    store: Any

    def _open(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fairlead-law-"))
        self.store = Storage(self.path / "data", cache_bytes=1 << 20)

    def _reopen(self) -> None:
        self.store = self.store.reopen()

    def teardown(self) -> None:
        super().teardown()  # type: ignore[misc]
        if hasattr(self, "path"):
            shutil.rmtree(self.path, ignore_errors=True)


def check_law(machine: type[RuleBasedStateMachine], name: str, *, examples: int, steps: int) -> None:
    """Try `examples` sequences of steps, or a quarter of that with `--sample`.

    FAIRLEAD_PROPERTY_EXAMPLES=5000    how many sequences to try instead
    FAIRLEAD_PROPERTY_SEED=12345       replay a run, with the same number of sequences
    """
    number = int(os.environ.get("FAIRLEAD_PROPERTY_SEED") or random.SystemRandom().randrange(2**32))
    wanted = os.environ.get("FAIRLEAD_PROPERTY_EXAMPLES")
    count = int(wanted) if wanted else sampled(-(-examples // 4), of=examples)
    chosen = settings(
        max_examples=count,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        database=None,  # a seed alone must replay the run
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
    )
    try:
        run_state_machine_as_test(seed(number)(machine), settings=chosen)
    except BaseException as error:
        settings_of_run = f"FAIRLEAD_PROPERTY_EXAMPLES={count} FAIRLEAD_PROPERTY_SEED={number}"
        error.add_note(f"replay: {settings_of_run} make test ARGS='-k {name}'")
        raise
