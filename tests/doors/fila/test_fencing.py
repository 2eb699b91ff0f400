"""A delivery is settled by whoever holds it, and not by whoever held it once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import fila
import pytest

from tests.doors.fila.servers import PATIENCE_S, ROOT, Admin, Server


class Holder:
    def __init__(self, address: str, queue: str) -> None:
        command = [sys.executable, "-m", "tests.doors.fila.holder", address, queue]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def holds(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    holders: list[Holder] = []
    yield holders
    for holder in holders:
        holder.close()


def test_a_late_settle_of_a_former_holder_changes_nothing(
    server: Server, admin: Admin, client: fila.Client, name: str, holders: list[Holder]
) -> None:
    admin.create(name, timeout_ms=1000)
    message_id = client.enqueue(name, None, b"")
    former = Holder(server.address, name)
    holders.append(former)
    assert former.holds() == message_id
    current = Holder(server.address, name)
    holders.append(current)
    assert current.holds() == message_id
    # Unfenced, each of these would end the lease of the other.
    assert former.say("ack") == "MessageNotFoundError"
    assert former.say("nack") == "MessageNotFoundError"
    stats = admin.stats(name)
    assert stats.depth + stats.in_flight == 1


def test_an_id_that_a_connection_was_never_sent_is_settled_without_a_token(
    server: Server, admin: Admin, client: fila.Client, name: str, holders: list[Holder]
) -> None:
    admin.create(name)
    message_id = client.enqueue(name, None, b"")
    holder = Holder(server.address, name)
    holders.append(holder)
    assert holder.holds() == message_id
    client.ack(name, message_id)
    assert holder.say("ack") == "MessageNotFoundError"
    assert admin.stats(name).in_flight == 0
