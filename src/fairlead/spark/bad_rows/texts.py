"""Texts of a row, as they can travel: Spark and Arrow keep any bytes in a string, where Python and JSON have
only characters.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def texts_in(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """With U+FFFD for what is not UTF-8: a row that failed its task for this would fail it each time it is
    tried.
    """
    try:
        texts: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [
            None if raw is None else raw.decode("utf-8", "replace")
            for raw in column.cast(pa.large_binary()).to_pylist()
        ]
    return texts
