"""Threads that share a connection, in front of a server that answers when the test lets it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.client.connection import BlockingConnection, NoAnswerInTime
from fairlead.client.outage import ConnectionBroken
from fairlead.client.shared import SharedConnection
from fairlead.errors import Unauthenticated
from tests.client.scene import PATIENCE_S, until


class Peer:
    """The other side of connections: hears commands, which are single letters, and answers each with itself."""

    def __init__(self) -> None:
        self.accepted: list[socket.socket] = []
        self.refuses: list[Exception] = []
        self.connections: list[BlockingConnection] = []

    def connect(self, within_s: float) -> BlockingConnection:
        if self.refuses:
            raise self.refuses.pop(0)
        ours, theirs = socket.socketpair()
        theirs.settimeout(PATIENCE_S)
        self.accepted.append(theirs)
        self.connections.append(BlockingConnection(ours, within_s))
        return self.connections[-1]

    def hear(self) -> str:
        """What came with one or more writes."""
        return self.accepted[-1].recv(1000).decode()

    def answer(self, letters: str) -> None:
        self.accepted[-1].sendall("".join(f"+{letter}\r\n" for letter in letters).encode())


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    for one in (*peer.accepted, *peer.connections):
        one.close()


@pytest.fixture
def shared(peer: Peer) -> SharedConnection:
    return SharedConnection(peer.connect, BlockingConnection.close, timeout_s=PATIENCE_S)


class Caller(threading.Thread):
    def __init__(self, shared: SharedConnection, letter: str, within_s: float = PATIENCE_S) -> None:
        super().__init__(daemon=True)
        self.letter, self.within_s, self.shared = letter, within_s, shared
        self.reply: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.reply = self.shared.call(self.letter.encode(), self.within_s)
        except Exception as error:
            self.error = error

    def ended(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.reply if self.error is None else self.error


def queued(shared: SharedConnection, count: int) -> None:
    until(lambda: len(shared._queued) == count, f"{count} commands being queued")


def test_commands_that_come_while_one_is_under_way_leave_together(
    shared: SharedConnection, peer: Peer
) -> None:
    first = Caller(shared, "a")
    until(lambda: peer.accepted)
    assert peer.hear() == "a"
    others = []
    for at, letter in enumerate("bcd"):
        others.append(Caller(shared, letter))
        queued(shared, at + 1)
    peer.answer("a")
    assert first.ended() == b"a"
    assert peer.hear() == "bcd"
    peer.answer("bcd")
    assert [caller.ended() for caller in others] == [b"b", b"c", b"d"]


def test_whoever_waits_reads_for_all(shared: SharedConnection, peer: Peer) -> None:
    first = Caller(shared, "a")
    until(lambda: peer.accepted)
    peer.hear()
    second = Caller(shared, "b")
    queued(shared, 1)
    third = Caller(shared, "c")
    queued(shared, 2)
    peer.answer("a")
    first.ended()
    peer.hear()
    # The second has its reply and is gone; somebody still reads for the third.
    peer.answer("b")
    assert second.ended() == b"b"
    peer.answer("c")
    assert third.ended() == b"c"


def test_a_caller_that_gives_up_leaves_its_place_and_harms_nobody(
    shared: SharedConnection, peer: Peer
) -> None:
    first = Caller(shared, "a", within_s=0.05)
    error = first.ended()
    assert isinstance(error, NoAnswerInTime)
    assert error.sent
    second = Caller(shared, "b")
    assert peer.hear() == "a"
    peer.answer("a")
    assert peer.hear() == "b"
    peer.answer("b")
    assert second.ended() == b"b"


def test_a_caller_that_gives_up_in_the_queue_was_not_sent(shared: SharedConnection, peer: Peer) -> None:
    first = Caller(shared, "a")
    until(lambda: peer.accepted)
    error = Caller(shared, "b", within_s=0.05).ended()
    assert isinstance(error, NoAnswerInTime)
    assert not error.sent
    assert peer.hear() == "a"
    peer.answer("a")
    assert first.ended() == b"a"


def test_a_connection_that_says_nothing_for_its_timeout_counts_as_dead(peer: Peer) -> None:
    shared = SharedConnection(peer.connect, BlockingConnection.close, timeout_s=0.1)
    assert isinstance(Caller(shared, "a", within_s=0.05).ended(), NoAnswerInTime)
    second = Caller(shared, "b")
    until(lambda: len(peer.accepted) == 2, "another connection")
    assert peer.hear() == "b"
    peer.answer("b")
    assert second.ended() == b"b"


def test_when_a_connection_breaks_what_was_not_sent_goes_out_on_the_next(
    shared: SharedConnection, peer: Peer
) -> None:
    first = Caller(shared, "a")
    until(lambda: peer.accepted)
    peer.hear()
    second = Caller(shared, "b")
    queued(shared, 1)
    peer.accepted[0].shutdown(socket.SHUT_RDWR)
    error = first.ended()
    assert isinstance(error, ConnectionBroken)
    assert error.sent
    until(lambda: len(peer.accepted) == 2, "another connection")
    assert peer.hear() == "b"
    peer.answer("b")
    assert second.ended() == b"b"


def test_a_connection_that_ended_while_nobody_used_it_is_replaced_before_anything_is_sent(
    shared: SharedConnection, peer: Peer
) -> None:
    first = Caller(shared, "a")
    until(lambda: peer.accepted)
    peer.answer("a")
    first.ended()
    peer.accepted[0].close()
    second = Caller(shared, "b")
    until(lambda: len(peer.accepted) == 2)
    peer.answer("b")
    assert second.ended() == b"b"


def test_a_connection_that_cannot_be_made_is_everybodys_trouble_and_nothing_was_sent(
    shared: SharedConnection, peer: Peer
) -> None:
    peer.refuses = [ConnectionBroken("refused", sent=False)]
    error = Caller(shared, "a").ended()
    assert (str(error), error.sent) == ("refused", False)
    peer.refuses = [Unauthenticated("why")]
    assert isinstance(Caller(shared, "b").ended(), Unauthenticated)
    third = Caller(shared, "c")
    until(lambda: peer.accepted)
    assert peer.hear() == "c"
    peer.answer("c")
    assert third.ended() == b"c"


def test_of_commands_that_could_not_be_written_the_last_was_not_carried_out(
    shared: SharedConnection, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Caller(shared, "a")
    until(lambda: peer.accepted)
    peer.hear()
    second = Caller(shared, "b")
    queued(shared, 1)
    third = Caller(shared, "c")
    queued(shared, 2)

    def broken(self: BlockingConnection, data: bytes, within_s: float) -> None:
        raise ConnectionBroken("reset", sent=True)

    monkeypatch.setattr(BlockingConnection, "send", broken)
    peer.answer("a")
    assert first.ended() == b"a"
    assert [caller.ended().sent for caller in (second, third)] == [True, False]


def test_an_interrupted_leader_hands_over(
    shared: SharedConnection, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: BlockingConnection, within_s: float) -> list[Any]:
        monkeypatch.undo()
        queued(shared, 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(BlockingConnection, "receive", interrupted)
    second: list[Caller] = []
    threading.Timer(0.01, lambda: second.append(Caller(shared, "b"))).start()
    with pytest.raises(KeyboardInterrupt):
        shared.call(b"a", PATIENCE_S)
    until(lambda: len(peer.accepted) == 2, "another connection")
    assert peer.hear() == "b"
    peer.answer("b")
    assert second[0].ended() == b"b"
