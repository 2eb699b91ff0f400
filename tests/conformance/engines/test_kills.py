"""A killed process loses nothing that was confirmed, and brings nothing back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Goodbye

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("seed", "lines"), [(1, 40), (2, 300), (3, 777), (4, 1500), (5, 2222)])
def test_what_a_killed_process_confirmed_is_there_and_nothing_else(
    tmp_path: Path, seed: int, lines: int
) -> None:
    command = [sys.executable, "-m", "tests.conformance.engines.victim", str(tmp_path / "data"), str(seed)]
    victim = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    said = [victim.stdout.readline() for _ in range(lines)]
    victim.kill()
    said += victim.stdout.read().splitlines()
    victim.wait()
    by_word: dict[str, set[int]] = {"sent": set(), "enqueued": set(), "settling": set(), "completed": set()}
    for line in said:
        word, number = line.split()
        by_word[word].add(int(number))

    engine = Engine(RocksKeyValueStore.open(tmp_path / "data"))
    assert broken_laws(engine) == []
    engine.do(Goodbye(""))
    found: list[int] = []
    while deliveries := engine.do(Claim("q", 1000)):
        found += [int(delivery.payload) for delivery in deliveries]
    engine.close()
    assert len(found) == len(set(found))
    assert by_word["enqueued"] - by_word["settling"] <= set(found) <= by_word["sent"] - by_word["completed"]
