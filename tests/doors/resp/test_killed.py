"""A server that is killed while clients write through the door that speaks Redis: what was confirmed is there."""

from __future__ import annotations

import threading
from pathlib import Path

import hiredis
import pytest

from fairlead import Complete
from fairlead.testing.server import run_server
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.settle import Settle
from tests.doors.resp.wire import Wire, pack, packed


class Writer(threading.Thread):
    """Enqueues in pipelines, and completes some of what it claims, until its connection breaks."""

    def __init__(self, address: str, number: int, confirmed: threading.Event) -> None:
        super().__init__(daemon=True)
        self.ids: list[str] = []
        self.done: list[str] = []
        #: Said to be complete; the answer may be lost.
        self.settling: set[str] = set()
        self._wire = Wire(address)
        self._number = number
        self._confirmed = confirmed

    def run(self) -> None:
        queue = f"q{self._number}"
        try:
            while True:
                self._wire.send(b"".join([pack("FL.ENQUEUE", queue, n) for n in range(20)]))
                for reply in self._wire.read_many(20):
                    assert not isinstance(reply, hiredis.ReplyError), reply
                    self.ids.append(reply.decode())
                found = self._wire.do(Claim(queue, 5))
                self.settling = {one.id for one in found}
                self.done += [
                    one.id for one in self._wire.do(Settle([Complete(one) for one in found])) if one.ok
                ]
                self.settling = set()
                if len(self.ids) >= 200:
                    self._confirmed.set()
        except (OSError, ConnectionError):
            pass


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_was_confirmed_survives_a_kill_and_what_was_completed_stays_away(
    tmp_path: Path, durability: str
) -> None:
    with run_server(tmp_path / "data", flight=False, settings={"durability": durability}) as server:
        address = server.addresses["resp"]
        control = Wire(address)
        for number in range(4):
            control.ask("FL.CREATE_QUEUE", f"q{number}", "VISIBILITY_TIMEOUT", "1h")
        enough = threading.Event()
        writers = [Writer(address, number, enough) for number in range(4)]
        for one in writers:
            one.start()
        assert enough.wait(60)
        server.kill()
        for one in writers:
            one.join(30)
        server.start()
        again = Wire(server.addresses["resp"])
        again.ask("HELLO", "3")
        for number, one in enumerate(writers):
            stats = again.ask("FL.STATS", f"q{number}")
            leased = stats[b"leased"]
            there = {found.id for found in again.do(Claim(f"q{number}", 100_000))}
            assert not there & set(one.done)
            missing = set(one.ids) - set(one.done) - there
            # A claim that was not answered may hold a few.
            assert len(missing - one.settling) <= leased
        assert again.do(Enqueue("q0", b"goes on"))
        again.send(packed(Enqueue("q0", b"x")))
        again.read()
        again.close()
        control.close()
