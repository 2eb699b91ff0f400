"""Counts the requests that reach the engine, by verb and outcome, and how long they took."""

from __future__ import annotations

import threading
from time import perf_counter

from fairlead.errors import FairleadError
from fairlead.model.distribution import Distribution
from fairlead.request import Answer, Caller, Handler, Request

#: Upper bounds of the histogram, in seconds.
REQUEST_SECONDS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)
OK = "ok"
#: Any error that is not fairlead's.
FAILED = "failed"


class RequestCounts:
    """The counts of one verb. `outcomes`: by "ok", the code of an error, or "failed"."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.seconds = Distribution(REQUEST_SECONDS)
        self._lock = threading.Lock()

    def add(self, outcome: str, seconds: float) -> None:
        with self._lock:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            self.seconds.add(seconds)


class MetricsLayer:
    """The innermost layer, so that its times are the engine's, including a wait for messages. A request that
    another layer refuses is not counted here. For a paged answer, the first step counts.
    """

    def __init__(self, inner: Handler, counts: RequestCounts) -> None:
        self._inner = inner
        self._counts = counts

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        began = perf_counter()
        try:
            answer = self._inner(request, caller)
        except BaseException as error:
            outcome = error.code if isinstance(error, FairleadError) else FAILED
            self._counts.add(outcome, perf_counter() - began)
            raise
        self._counts.add(OK, perf_counter() - began)
        return answer
