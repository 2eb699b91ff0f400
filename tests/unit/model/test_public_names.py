"""Names that `from fairlead import *` brings."""

from __future__ import annotations

import builtins

import fairlead


def test_a_star_import_replaces_no_builtin() -> None:
    assert not set(fairlead.__all__) & set(dir(builtins))
    assert callable(fairlead.open)
