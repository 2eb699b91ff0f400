from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.errors import Overloaded, ServerStopping
from fairlead.middleware.limits import LimitsLayer
from fairlead.request import Caller, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersRead
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.inspect import Stats

CALLER = Caller(None, "ann", "x", size=7)


class Places:
    """Which places were taken, and which are held now."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.held: list[str] = []
        self.refusal: Exception | None = None

    def begin_call(self, size: int = 0) -> None:
        self._begin(f"call of {size}")

    def end_call(self, size: int = 0) -> None:
        self.held.remove(f"call of {size}")

    def begin_waiting(self) -> bool:
        self._begin("waiting")
        return True

    def end_waiting(self) -> None:
        self.held.remove("waiting")

    def _begin(self, name: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.taken.append(name)
        self.held.append(name)


class Engine:
    def __init__(self, places: Places, answer: Any = None) -> None:
        self._places = places
        self._answer = answer
        self.held: list[list[str]] = []

    def __call__(self, request: Request[Any], caller: Caller) -> Any:
        self.held.append(list(self._places.held))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        (Enqueue("q", b""), "call of 7"),
        (Stats("q"), "call of 7"),
        (Claim("q", wait="1s"), "waiting"),
        (Claim("q"), "waiting"),
        (Claim("q", wait="soon"), "waiting"),
    ],
)
def test_a_request_holds_a_place_while_it_runs(request_: Request[Any], place: str) -> None:
    places = Places()
    engine = Engine(places, "the answer")
    assert LimitsLayer(engine, places)(request_, CALLER) == "the answer"
    assert engine.held == [[place]]
    assert places.held == []


def test_a_request_that_fails_gives_its_place_back() -> None:
    places = Places()
    with pytest.raises(ZeroDivisionError):
        LimitsLayer(Engine(places, ZeroDivisionError()), places)(Stats("q"), CALLER)
    assert places.held == []


@pytest.mark.parametrize("refusal", [Overloaded("calls at a time", 1, 50), ServerStopping()])
@pytest.mark.parametrize("request_", [Stats("q"), Claim("q")])
def test_a_request_without_a_place_is_refused_before_it_runs(
    request_: Request[Any], refusal: Exception
) -> None:
    places = Places()
    engine = Engine(places)
    places.refusal = refusal
    with pytest.raises(type(refusal)):
        LimitsLayer(engine, places)(request_, CALLER)
    assert engine.held == []


def test_each_page_holds_a_place_of_its_own_and_none_is_held_between_two() -> None:
    places = Places()

    def pages() -> Iterator[list[str]]:
        for page in (["a"], ["b"]):
            assert places.held == ["call of 0"]
            yield page

    answer = LimitsLayer(Engine(places, pages()), places)(ConsumersRead("c", "q", 1, 1), CALLER)
    assert next(answer) == ["a"]
    assert places.held == []
    assert list(answer) == [["b"]]
    assert places.taken == ["call of 7", "call of 0", "call of 0", "call of 0"]


def test_a_stop_ends_a_paged_answer_between_two_pages() -> None:
    places = Places()
    answer = LimitsLayer(Engine(places, iter([["a"], ["b"]])), places)(ConsumersRead("c", "q", 1, 1), CALLER)
    assert next(answer) == ["a"]
    places.refusal = ServerStopping()
    with pytest.raises(ServerStopping):
        next(answer)
