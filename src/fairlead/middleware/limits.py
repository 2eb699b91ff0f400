"""Holds a place among the calls in flight while a request runs; refuses the request when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from fairlead.request import Answer, Caller, Handler, Request


class Places(Protocol):
    """Counts calls for all doors of a server. Both methods raise before anything was carried out."""

    def call(self, size: int = 0) -> AbstractContextManager[None]: ...

    def waiting_call(self) -> AbstractContextManager[None]: ...


class Limits:
    """A request of a verb that may wait takes no place from those that work: while it waits it costs only its
    thread. Each page of a paged answer holds a place of its own, so that a caller who takes its time between
    two pages holds none.
    """

    def __init__(self, inner: Handler, places: Places) -> None:
        self._inner = inner
        self._places = places

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        if request.patience_ms() is not None:
            with self._places.waiting_call():
                return self._inner(request, caller)
        with self._places.call(caller.size):
            answer = self._inner(request, caller)
        if request.paged:
            return cast(Answer, self._pages(cast("Iterator[Any]", answer)))
        return answer

    def _pages(self, pages: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._places.call():
                page = next(pages, None)
            if page is None:
                return
            yield page
