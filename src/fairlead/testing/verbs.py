"""Replace the work of a verb, so that a test sees how the layers around it react."""

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
    """Run `replacement` in place of the verb's work. It gets the work as a function, which it may call or
    not.

    No request takes a short way meanwhile, because a short way would bypass the replacement.
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
    """Run `work` as the work of a verb that a test defines."""
    WORK[request] = lambda tx, given: work(given)
    try:
        yield
    finally:
        del WORK[request]
