from __future__ import annotations

import hiredis

from fairlead.client.resp.commands import command_of
from fairlead.client.resp.session import Session
from fairlead.verbs.inspect import Stats


def test_a_number_tells_up_to_which_all_answers_have_arrived() -> None:
    session = Session(b"s")
    assert [session.next()[1:] for _ in range(4)] == [(1, 0), (2, 0), (3, 0), (4, 0)]
    session.has_arrived(3)
    session.has_arrived(2)
    assert session.next().arrived == 0
    session.has_arrived(1)
    assert session.next() == (b"s", 6, 3)


def test_a_numbered_command_says_its_session_first() -> None:
    session = Session(b"s")
    reader = hiredis.Reader()
    reader.feed(command_of(Stats("q"), session.next()))
    *once, verb, fields = reader.gets()
    assert (once, verb) == ([b"FL.ONCE", b"s", b"1", b"0"], b"FL.STATS")
    reader.feed(command_of(Stats("q")))
    assert reader.gets() == [verb, fields]
