"""Whether a task has seen the last row of its partition, or only the last that somebody cared to send.

Spark ends a task early when a `limit` has enough, and when what feeds it fails. Then it closes the connection
to the Python worker, and that looks like the end of the rows: Arrow takes it for one where it falls between
two batches. But only behind the real end does Spark send a mark of its own, which its worker reads when the
function is over. Here it is looked at and left there.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from fairlead.errors import SparkNotReady

#: Where Spark's worker keeps the connection; not documented, a test notices when it changes.
_MODULE: Final = "pyspark.worker"
_NAME: Final = "input_data_stream"
#: `SpecialLengths.END_OF_STREAM`, as it travels.
_MARK: Final = (-4).to_bytes(4, "big", signed=True)


class CutShort(Exception):
    """There would have been more rows. Nobody reads this but Spark's worker, whose task is over or has
    failed.
    """


def check_whole_input() -> None:
    """To be called by the function of a task when its rows have ended. Raises `CutShort`."""
    seen = _connection().peek(len(_MARK))[: len(_MARK)]
    if not seen or not _MARK.startswith(seen):
        raise CutShort("Spark has ended this task before the last row of its partition")


def _connection() -> Any:
    frame = sys._getframe()
    while frame is not None:
        if _is_of_worker(frame.f_globals) and hasattr(frame.f_locals.get(_NAME), "peek"):
            return frame.f_locals[_NAME]
        frame = frame.f_back  # type: ignore[assignment]
    raise SparkNotReady(
        f"a Python worker of Spark 4.3 with its connection ({_MODULE}.{_NAME})",
        "none",
        "Without it the end of a partition cannot be told from that of a task that was cut short: use the version of Spark that fairlead names",
    )


def _is_of_worker(module: dict[str, Any]) -> bool:
    """Without Spark's daemon the worker is the program of its process, and only its spec has its name."""
    return _MODULE in (module.get("__name__"), getattr(module.get("__spec__"), "name", None))
