"""Each bug still fits the sources. Whether the tests catch it is asked by `python -m tests.mutants`."""

from __future__ import annotations

import pytest

from .__main__ import ROOT, with_bug
from .bugs import BUGS, SUITES, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_sources(bug: Bug) -> None:
    text = (ROOT / "src" / "fairlead" / bug.file).read_text()
    changed = with_bug(bug, text)
    compile(changed, bug.file, "exec")
    assert changed != text
    assert bug.suite in SUITES
