"""What fuzzing has found, run again: each file in `findings/` is what a target was given, its name begins
with the target's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import targets

FINDINGS = sorted((Path(__file__).parent / "findings").iterdir())


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
def test_what_was_found_once_is_refused_now(finding: Path) -> None:
    targets.run(finding.name.partition("-")[0], finding.read_bytes())


@pytest.mark.parametrize("name", targets.TARGETS)
def test_what_fuzzing_begins_with_is_read_or_refused(name: str) -> None:
    for seed in targets.TARGETS[name].seeds:
        targets.run(name, seed)
        for cut in range(0, len(seed), 7):
            targets.run(name, seed[:cut])


def test_a_target_complains_about_what_it_is_there_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(raw: bytes) -> object:
        return raw[5]

    monkeypatch.setitem(targets.TARGETS, "careless", targets.Target(careless, []))
    targets.run("careless", b"123456")
    with pytest.raises(AssertionError, match="met IndexError"):
        targets.run("careless", b"")
