from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.client import gather
from fairlead.client.crew import Crew
from fairlead.client.gather import Gatherer
from fairlead.errors import AnswerLost, ClientClosed, QueueFull, QueueNotFound, ServerUnreachable, StoreFull
from fairlead.testing import ManualClock
from tests.client.scene import PATIENCE_S, until


@dataclass(frozen=True)
class Call:
    name: str
    items: int = 1
    bytes: int = 1


class Server:
    """Keeps what it is sent; while it is held, a request stays under way."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.deadlines: list[int] = []
        self.threads: list[threading.Thread] = []
        self.refuses: dict[str, Exception] = {}
        self._go = threading.Event()
        self._go.set()
        self.busy = threading.Event()

    def hold(self) -> None:
        self.busy.clear()
        self._go.clear()

    def hold_next(self) -> None:
        """Let go of the request that is under way, and hold the one after it."""
        held, self._go = self._go, threading.Event()
        held.set()

    def let_go(self) -> None:
        self._go.set()

    def send(self, calls: Sequence[Call], ends_ms: int) -> list[str]:
        self.requests.append([call.name for call in calls])
        self.deadlines.append(ends_ms)
        self.threads.append(threading.current_thread())
        go = self._go
        self.busy.set()
        assert go.wait(PATIENCE_S)
        for call in calls:
            if call.name in self.refuses:
                raise self.refuses[call.name]
        return [call.name.upper() for call in calls]


class Deadlines:
    """Calls that may take so long by a clock that a test moves."""

    def __init__(self, span_ms: int = 60_000) -> None:
        self.clock = ManualClock()
        self._span_ms = span_ms

    def deadline_ms(self) -> int:
        return self.clock.monotonic_ms() + self._span_ms

    def unreachable(self, what: str) -> ServerUnreachable:
        return ServerUnreachable("host:1", what)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def gatherer(server: Server) -> Iterator[Gatherer[Call, str]]:
    crew = Crew(4)
    yield Gatherer(server.send, crew, "call", Deadlines())
    crew.close()


class Caller:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.outcome: Future[Any] = Future()
        self._call = call
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.outcome.set_result(self._call())
        except BaseException as error:
            self.outcome.set_exception(error)


def start(gatherer: Gatherer[Call, str], *calls: Call) -> list[Future[str]]:
    """In threads, one after the other, so that their order is known."""
    outcomes = []
    for call in calls:
        queued = len(gatherer._queue)
        outcomes.append(Caller(lambda call=call: gatherer.call(call)).outcome)  # type: ignore[misc]
        until(lambda queued=queued: len(gatherer._queue) > queued, "the call being queued")  # type: ignore[misc]
    return outcomes


def first_under_way(gatherer: Gatherer[Call, str], server: Server) -> Future[str]:
    server.hold()
    first = Caller(lambda: gatherer.call(Call("first"))).outcome
    assert server.busy.wait(PATIENCE_S)
    return first


def test_a_lone_call_is_sent_at_once_by_its_own_thread(gatherer: Gatherer[Call, str], server: Server) -> None:
    sent_by = []
    server.send, send = (
        lambda *calls: (sent_by.append(threading.current_thread()), send(*calls))[1],
        server.send,
    )  # type: ignore[method-assign, func-returns-value]
    gatherer._send = server.send
    assert gatherer.call(Call("a")) == "A"
    assert sent_by == [threading.current_thread()]


def test_calls_that_come_while_a_request_is_under_way_go_together_and_in_order(
    gatherer: Gatherer[Call, str], server: Server
) -> None:
    first = first_under_way(gatherer, server)
    others = start(gatherer, Call("a"), Call("b"), Call("c"))
    server.let_go()
    assert first.result(PATIENCE_S) == "FIRST"
    assert [other.result(PATIENCE_S) for other in others] == ["A", "B", "C"]
    assert server.requests == [["first"], ["a", "b", "c"]]


def test_futures_and_threads_wait_in_one_queue(gatherer: Gatherer[Call, str], server: Server) -> None:
    first = first_under_way(gatherer, server)
    outcomes = [gatherer.submit(Call("a")), *start(gatherer, Call("b")), gatherer.submit(Call("c"))]
    server.let_go()
    assert [outcome.result(PATIENCE_S) for outcome in [first, *outcomes]] == ["FIRST", "A", "B", "C"]
    assert server.requests == [["first"], ["a", "b", "c"]]


def test_only_the_guilty_call_gets_the_error(gatherer: Gatherer[Call, str], server: Server) -> None:
    server.refuses = {"b": QueueNotFound("b"), "d": QueueFull("d", "max_messages", 1)}
    first = first_under_way(gatherer, server)
    calls = start(gatherer, *(Call(name) for name in "abcde"))
    server.let_go()
    assert first.result(PATIENCE_S) == "FIRST"
    assert [type(call.exception(PATIENCE_S)) for call in calls] == [
        type(None),
        QueueNotFound,
        type(None),
        QueueFull,
        type(None),
    ]
    assert [calls[at].result() for at in (0, 2, 4)] == ["A", "C", "E"]


def test_after_a_refusal_calls_still_take_effect_in_order(
    gatherer: Gatherer[Call, str], server: Server
) -> None:
    server.refuses = {"b": QueueNotFound("b")}
    first_under_way(gatherer, server)
    calls = start(gatherer, *(Call(name) for name in "abcde"))
    server.let_go()
    for call in calls:
        call.exception(PATIENCE_S)
    carried_out = [
        name for request in server.requests for name in request if not server.refuses.keys() & set(request)
    ]
    assert carried_out == ["first", "a", "c", "d", "e"]


def test_an_error_that_is_nobodys_fault_is_not_tried_call_by_call(
    gatherer: Gatherer[Call, str], server: Server
) -> None:
    server.refuses = {"b": StoreFull("/data", 0, 1)}
    first_under_way(gatherer, server)
    calls = start(gatherer, Call("a"), Call("b"))
    server.let_go()
    assert [type(call.exception(PATIENCE_S)) for call in calls] == [StoreFull, StoreFull]
    assert server.requests == [["first"], ["a", "b"]]


@pytest.mark.parametrize(
    ("calls", "requests"),
    [
        ([Call("a", items=6000), Call("b", items=4000), Call("c")], [["a", "b"], ["c"]]),
        ([Call("a", bytes=gather.MOST_BYTES), Call("b")], [["a"], ["b"]]),
        ([Call("a"), Call("b", items=100_000), Call("c")], [["a"], ["b"], ["c"]]),
    ],
    ids=["items", "bytes", "one call larger than a request may be"],
)
def test_a_request_is_bounded_but_a_call_is_never_split(
    gatherer: Gatherer[Call, str], server: Server, calls: list[Call], requests: list[list[str]]
) -> None:
    first_under_way(gatherer, server)
    outcomes = start(gatherer, *calls)
    server.let_go()
    for outcome in outcomes:
        outcome.result(PATIENCE_S)
    assert server.requests[1:] == requests


def test_a_call_cancelled_before_its_request_is_made_is_not_sent(
    gatherer: Gatherer[Call, str], server: Server
) -> None:
    first_under_way(gatherer, server)
    unwanted, wanted = gatherer.submit(Call("unwanted")), gatherer.submit(Call("wanted"))
    assert unwanted.cancel()
    server.let_go()
    assert wanted.result(PATIENCE_S) == "WANTED"
    assert server.requests == [["first"], ["wanted"]]


def test_a_call_cancelled_as_the_only_one_leaves_the_way_free(
    gatherer: Gatherer[Call, str], server: Server
) -> None:
    first_under_way(gatherer, server)
    assert gatherer.submit(Call("unwanted")).cancel()
    server.let_go()
    assert Caller(lambda: gatherer.call(Call("next"))).outcome.result(PATIENCE_S) == "NEXT"


def test_a_thread_interrupted_while_it_carries_others_tells_them_that_their_answer_is_lost(
    gatherer: Gatherer[Call, str], server: Server
) -> None:
    first = first_under_way(gatherer, server)
    leader, follower = start(gatherer, Call("leader"), Call("follower"))
    server.refuses = {"leader": KeyboardInterrupt()}  # type: ignore[dict-item]
    server.let_go()
    assert first.result(PATIENCE_S) == "FIRST"
    assert isinstance(leader.exception(PATIENCE_S), KeyboardInterrupt)
    assert isinstance(follower.exception(PATIENCE_S), AnswerLost)
    assert gatherer.call(Call("next")) == "NEXT"


@pytest.mark.parametrize("before_its_turn", [True, False])
def test_a_thread_interrupted_while_it_waits_holds_up_nobody(
    gatherer: Gatherer[Call, str], server: Server, monkeypatch: pytest.MonkeyPatch, before_its_turn: bool
) -> None:
    wait = gather._Call.wait

    def interrupted(call: gather._Call[Call, str], timeout_s: float) -> bool:
        if call.work.name == "interrupted":
            if not before_its_turn:
                wait(call, timeout_s)
            raise KeyboardInterrupt
        return wait(call, timeout_s)

    monkeypatch.setattr(gather._Call, "wait", interrupted)
    first = first_under_way(gatherer, server)
    unlucky = Caller(lambda: gatherer.call(Call("interrupted"))).outcome
    if before_its_turn:
        assert isinstance(unlucky.exception(PATIENCE_S), KeyboardInterrupt)
    else:
        until(lambda: len(gatherer._queue) == 1)
    (other,) = start(gatherer, Call("other"))
    server.let_go()
    assert first.result(PATIENCE_S) == "FIRST"
    assert other.result(PATIENCE_S) == "OTHER"
    assert isinstance(unlucky.exception(PATIENCE_S), KeyboardInterrupt)


def test_a_call_of_a_client_that_is_closed_is_told_so(server: Server) -> None:
    crew = Crew(1)
    gatherer: Gatherer[Call, str] = Gatherer(server.send, crew, "call", Deadlines())
    server.refuses = {"late": ClientClosed()}
    crew.close()
    assert isinstance(gatherer.submit(Call("late")).exception(PATIENCE_S), ClientClosed)


def test_many_threads_get_their_own_answers(gatherer: Gatherer[Call, str], server: Server) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        for at in range(200):
            name = f"{number}-{at}x"
            if gatherer.call(Call(name)) != name.upper():
                wrong.append(name)

    callers = [Caller(lambda number=number: work(number)) for number in range(8)]  # type: ignore[misc]
    for caller in callers:
        caller.outcome.result(PATIENCE_S)
    sent = [name for request in server.requests for name in request]
    assert wrong == []
    assert sorted(sent) == sorted({*sent})
    for number in range(8):
        of_one = [name for name in sent if name.startswith(f"{number}-")]
        assert of_one == [f"{number}-{at}x" for at in range(200)]


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines(span_ms=1000)


@pytest.fixture
def hurried(server: Server, deadlines: Deadlines) -> Iterator[Gatherer[Call, str]]:
    crew = Crew(4)
    yield Gatherer(server.send, crew, "call", deadlines)
    server.let_go()
    crew.close()


def test_a_call_that_is_queued_at_its_deadline_is_unreachable_and_never_sent(
    hurried: Gatherer[Call, str], server: Server, deadlines: Deadlines
) -> None:
    first = first_under_way(hurried, server)
    (late,) = start(hurried, Call("late"))
    deadlines.clock.advance(ms=1200)
    assert isinstance(late.exception(PATIENCE_S), ServerUnreachable)
    server.let_go()
    assert first.result(PATIENCE_S) == "FIRST"
    assert hurried.call(Call("next")) == "NEXT"
    assert server.requests == [["first"], ["next"]]


def test_a_call_whose_request_is_under_way_at_its_deadline_may_have_been_carried_out(
    hurried: Gatherer[Call, str], server: Server, deadlines: Deadlines
) -> None:
    first = first_under_way(hurried, server)
    (late,) = start(hurried, Call("late"))
    deadlines.clock.advance(ms=500)
    server.hold_next()
    assert first.result(PATIENCE_S) == "FIRST"
    until(lambda: server.requests == [["first"], ["late"]], "the second request")
    deadlines.clock.advance(ms=700)
    assert isinstance(late.exception(PATIENCE_S), AnswerLost)


def test_a_request_after_a_long_wait_has_the_time_of_its_latest_call_and_a_thread_of_its_own(
    hurried: Gatherer[Call, str], server: Server, deadlines: Deadlines
) -> None:
    first = first_under_way(hurried, server)
    old = start(hurried, Call("old"))
    deadlines.clock.advance(ms=900)
    young = start(hurried, Call("young"))
    server.let_go()
    assert [outcome.result(PATIENCE_S) for outcome in [first, *old, *young]] == ["FIRST", "OLD", "YOUNG"]
    assert server.requests == [["first"], ["old", "young"]]
    began_ms = deadlines.clock.monotonic_ms() - 900
    assert server.deadlines == [began_ms + 1000, began_ms + 1900]
    assert server.threads[1].name == "fairlead-client"


def test_a_request_after_a_short_wait_is_sent_by_the_thread_of_its_first_call(
    hurried: Gatherer[Call, str], server: Server
) -> None:
    first = first_under_way(hurried, server)
    others = start(hurried, Call("a"), Call("b"))
    server.let_go()
    assert [outcome.result(PATIENCE_S) for outcome in [first, *others]] == ["FIRST", "A", "B"]
    assert server.threads[1].name != "fairlead-client"
