"""Let a verb do something else than its work, so that a test sees what the layers around it make of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead.engine.short_ways import SHORT_WAYS
from fairlead.engine.work import WORK, WORK_IN_STEPS
from fairlead.request import Request


@contextmanager
def replaced_work(
    request: type[Request[Any]], replacement: Callable[[Callable[[], Any]], Any]
) -> Iterator[None]:
    """`replacement` runs in the place of the verb's work, and gets the work as a function to call or not. No request takes
    a short way meanwhile, which would pass it by.
    """
    tables: list[dict[Any, Any]] = [table for table in (WORK, WORK_IN_STEPS) if request in table]
    originals = [table[request] for table in tables]

    def in_place(work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: replacement(lambda: work(*arguments))

    short_way = SHORT_WAYS.pop(request, None)
    for table, work in zip(tables, originals, strict=True):
        table[request] = in_place(work)
    try:
        yield
    finally:
        if short_way is not None:
            SHORT_WAYS[request] = short_way
        for table, work in zip(tables, originals, strict=True):
            table[request] = work


@contextmanager
def given_work(request: type[Request[Any]], work: Callable[[Any], Any]) -> Iterator[None]:
    """For a verb of a test: `work` makes its answer."""
    WORK[request] = lambda tx, given: work(given)
    try:
        yield
    finally:
        del WORK[request]
