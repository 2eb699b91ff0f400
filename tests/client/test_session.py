from __future__ import annotations

import hiredis
from msgspec.structs import astuple

from fairlead.client.commands import command_of
from fairlead.client.session import IdleSessions, Session
from fairlead.verbs.inspect import Stats
from fairlead.wire.numbered import read_place


def test_a_number_says_that_all_answers_before_it_have_arrived() -> None:
    session = Session()
    assert [(place.number, place.arrived) for place in (session.next(), session.next())] == [(1, 0), (2, 1)]


def test_a_session_has_one_request_at_a_time() -> None:
    idle = IdleSessions()
    session = Session()
    idle.give_back(session)
    assert [idle.take(), idle.take()] == [session, None]


def test_a_numbered_command_says_its_session_first() -> None:
    session = Session()
    reader = hiredis.Reader()
    reader.feed(command_of(Stats("q"), session.next()))
    once, place, fields = reader.gets()
    assert (once, astuple(read_place(place))) == (b"FL.ONCE", (session.name, 1, 0, "FL.STATS"))
    reader.feed(command_of(Stats("q")))
    assert reader.gets() == [b"FL.STATS", fields]
