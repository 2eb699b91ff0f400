"""Holds a place among the calls in flight while a request runs; refuses the request if there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

from fairlead.request import Answer, Caller, Handler, Request


class Places(Protocol):
    """Counts calls for all doors of a server. Beginning raises before anything is carried out."""

    def begin_call(self, size: int = 0) -> None: ...

    def end_call(self, size: int = 0) -> None: ...

    def begin_waiting(self) -> bool:
        """False: it is counted already, and `end_waiting` must not be called."""

    def end_waiting(self) -> None: ...


class LimitsLayer:
    """A request of a verb that may wait takes no place from running calls: while it waits it costs only its
    thread. Each page of a paged answer holds a place of its own, so that a caller that pauses between two
    pages holds none.
    """

    def __init__(self, inner: Handler, places: Places) -> None:
        self._inner = inner
        self._places = places

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        # Pairs of calls instead of `with`: otherwise each request would pay for two generators.
        places, size = self._places, caller.size
        if request.waits:
            is_counted = places.begin_waiting()
            try:
                return self._inner(request, caller)
            finally:
                if is_counted:
                    places.end_waiting()
        places.begin_call(size)
        try:
            answer = self._inner(request, caller)
        finally:
            places.end_call(size)
        if request.paged:
            return cast(Answer, self._pages(cast("Iterator[Any]", answer)))
        return answer

    def _pages(self, pages: Iterator[Any]) -> Iterator[Any]:
        while True:
            self._places.begin_call()
            try:
                page = next(pages, None)
            finally:
                self._places.end_call()
            if page is None:
                return
            yield page
