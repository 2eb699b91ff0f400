"""Places in sessions: how many sessions a client opens, which requests share one, and which of them it closes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hiredis
import pytest
from msgspec.structs import astuple

from fairlead import NewMessage
from fairlead.client.commands import command_of
from fairlead.client.session import MAX_SESSIONS, ClientSession, Sessions
from fairlead.errors import ServerUnreachable
from fairlead.testing.engine import forget_sessions, rows_in
from fairlead.verbs.inspect import Stats
from fairlead.wire.numbered import read_place
from tests.client.clients import KINDS
from tests.client.lossy import LossyRelay
from tests.client.two_clients import Site
from tests.doors.resp.wire import PATIENCE_S


def filled(count: int) -> tuple[Sessions, list[Any]]:
    """So many sessions, each with a request under way."""
    sessions = Sessions()
    return sessions, [sessions.add(ClientSession()) for _ in range(count)]


def test_a_number_says_that_all_answers_before_it_have_arrived() -> None:
    sessions, (first,) = filled(1)
    sessions.give_back(first)
    second = sessions.take()
    assert [(place.number, place.arrived) for place in (first, second)] == [(1, 0), (2, 1)]


def test_a_session_has_one_request_at_a_time_while_there_are_few() -> None:
    sessions, places = filled(3)
    assert sessions.take() is None
    for place in places:
        sessions.give_back(place)
    again = [sessions.take() for _ in range(3)]
    assert {place.session for place in again} == {place.session for place in places}
    assert sessions.take() is None


def test_beyond_the_bound_requests_share_sessions_evenly_and_none_is_said_to_have_arrived_before_its_time() -> (
    None
):
    sessions, places = filled(MAX_SESSIONS)
    shared = [sessions.take() for _ in range(3 * MAX_SESSIONS)]
    assert {(place.number, place.arrived) for place in shared} == {(2, 0), (3, 0), (4, 0)}
    for place in shared:
        sessions.give_back(place)
    assert {sessions.take().arrived for _ in range(MAX_SESSIONS)} == {0}
    for place in places:
        sessions.give_back(place)
    assert {sessions.take().arrived for _ in range(MAX_SESSIONS)} == {4}


def test_no_session_goes_far_ahead_of_a_request_that_has_no_answer() -> None:
    sessions, _ = filled(MAX_SESSIONS)
    while (place := sessions.take()) is not None:
        sessions.give_back(place)
        assert place.number < 1000
    assert sessions.add(ClientSession()).number == 1


def test_while_a_session_is_opened_others_are_shared() -> None:
    sessions, _ = filled(1)
    assert sessions.take() is None
    assert [sessions.take(is_opening=True).number for _ in range(3)] == [2, 3, 4]
    assert Sessions().take(is_opening=True) is None


def test_a_session_that_is_forgotten_is_not_used_again() -> None:
    sessions, (place,) = filled(1)
    sessions.forget(place)
    sessions.give_back(place)
    assert (sessions.take(), sessions.end()) == (None, [])


def test_only_idle_sessions_without_late_copies_end() -> None:
    sessions, (idle, _) = filled(2)
    sessions.give_back(idle)
    assert sessions.end() == [idle.session]
    sessions.has_copies = True
    assert sessions.end() == []


def test_a_numbered_command_says_its_session_first() -> None:
    session = ClientSession()
    reader = hiredis.Reader()
    reader.feed(command_of(Stats("q"), session.next()))
    once, place, fields = reader.gets()
    assert (once, astuple(read_place(place))) == (b"FL.ONCE", (session.name, 1, 0, "FL.STATS"))
    reader.feed(command_of(Stats("q")))
    assert reader.gets() == [b"FL.STATS", fields]


# At a server


def answers(site: Site) -> tuple[int, int]:
    return len(rows_in(site.broker, "answers")), len(rows_in(site.broker, "session_ends"))


def test_closing_a_client_ends_its_sessions(site: Site, kind: str) -> None:
    client = site.connect(kind)
    client.enqueue("q", b"x")
    client.enqueue_many("q", [NewMessage(b"y")] * 100)
    assert answers(site) == (1, 1)
    client.close()
    assert answers(site) == (0, 0)


def test_a_session_stays_for_copies_that_may_come_late(site: Site, kind: str) -> None:
    with LossyRelay(site.address) as relay:
        client = site.connect(kind, relay.address)
        relay.lose(b"FL.ENQUEUE")
        client.enqueue("q", b"x")
        client.close()
    assert answers(site) == (1, 1)


@pytest.mark.parametrize("word", [b"FL.OPEN_SESSION", b"FL.STATS"])
def test_a_session_stays_whatever_request_was_sent_twice(site: Site, kind: str, word: bytes) -> None:
    """`open_session` above all: behind a late copy of it a late request would be new."""
    with LossyRelay(site.address) as relay:
        client = site.connect(kind, relay.address)
        relay.lose(word)
        client.stats("q")
        client.enqueue("q", b"x")
        client.close()
    assert answers(site) == (1, 1)


def test_closing_a_client_whose_server_is_gone_ends(site: Site, kind: str) -> None:
    with LossyRelay(site.address) as relay:
        client = site.connect(kind, relay.address, retry_for="100ms")
        client.enqueue("q", b"x")
        relay.refuse(1000)
        relay.end_all()
        client.close()
    assert answers(site) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_of_calls_opens_few_sessions_and_each_has_one_effect(site: Site, kind: str) -> None:
    client = site.connect(kind)
    count = 4 * MAX_SESSIONS
    with ThreadPoolExecutor(count) as pool:
        ids = list(pool.map(lambda n: client.enqueue("q", b"%d" % n), range(count), timeout=PATIENCE_S))
        assert 1 <= answers(site)[1] <= MAX_SESSIONS
        forget_sessions(site.broker)
        ids += pool.map(lambda n: client.enqueue("q", b"%d" % n), range(count), timeout=PATIENCE_S)
    assert len({*ids}) == 2 * count
    assert site.counts() == (2 * count, 0, 0, 0)
    client.close()
    assert answers(site) == (0, 0)


def test_a_burst_of_calls_whose_answers_are_lost_has_each_effect_once(site: Site, kind: str) -> None:
    count = 4 * MAX_SESSIONS
    with LossyRelay(site.address) as relay, ThreadPoolExecutor(count) as pool:
        client = site.connect(kind, relay.address)
        relay.lose(b"FL.ENQUEUE", 3)
        ids = list(pool.map(lambda n: client.enqueue("q", b"%d" % n), range(count), timeout=PATIENCE_S))
    assert len({*ids}) == count
    assert site.counts() == (count, 0, 0, 0)


def test_a_call_that_finds_no_server_does_not_wait_for_another_that_opens_a_session(
    site: Site, kind: str
) -> None:
    with LossyRelay(site.address) as relay, ThreadPoolExecutor(8) as pool:
        client = site.connect(kind, relay.address, retry_for="200ms", timeout="200ms")
        relay.refuse(100_000)
        relay.end_all()
        calls = [pool.submit(client.enqueue, "q", b"x") for _ in range(8)]
        for call in calls:
            with pytest.raises(ServerUnreachable):
                call.result(PATIENCE_S)
    assert site.counts() == (0, 0, 0, 0)
