"""pyarrow without pandas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_arrow_alone() -> None:
    """Import pyarrow in a process that runs no user code, and keep it from importing pandas.

    Where pandas is installed, pyarrow imports it when it first turns a list into a column, to check whether
    the list is a pandas object. The import takes half a second of every command, and of the first call to
    every server. pyarrow checks once; a later request for a DataFrame imports pandas as usual.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow

        pyarrow.array([])
    except ModuleNotFoundError:
        pass  # The code that needs pyarrow reports its absence, and how to install it.
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
        return None
