"""pyarrow without pandas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_arrow_alone() -> None:
    """For a process that runs nobody else's code.

    Where pandas is installed, pyarrow imports it when it first turns a list into a column, to see whether the
    list belongs to it: half a second of every command, and of the first call to every server. It looks once;
    asked for a DataFrame, it looks again.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow

        pyarrow.array([])
    except ModuleNotFoundError:
        pass  # whoever needs pyarrow says so, and how to get it
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
