"""A server that is told to stop while a scan runs, with an expression that takes RE2 as long as one may."""

from __future__ import annotations

from pathlib import Path

import pytest

import fairlead
from fairlead import DeadFilter, NewMessage
from fairlead.errors import FairleadError
from fairlead.testing import run_server
from tests.integration.world import Background, wait_until

#: Each error takes a tenth of a second or more: the whole scan takes longer than any test waits.
HOSTILE = DeadFilter(error_regex="(a?){900}c")
DEAD_LETTERS = 3000


@pytest.mark.parametrize("verb", ["redrive", "drop"])
def test_a_signal_ends_a_dry_run_with_a_hostile_pattern(tmp_path: Path, verb: str) -> None:
    with run_server(tmp_path, settings={"limits.drain_grace_ms": "1h", "durability": "os"}) as server:
        with (
            fairlead.connect(server.address) as client,
            fairlead.connect(server.address, retry_for="0s") as other,
        ):
            client.create_queue("q")
            client.quarantine("q", [NewMessage(b"") for _ in range(DEAD_LETTERS)], error="a" * 8000)
            scan = Background(lambda: getattr(other, verb)("q", filter=HOSTILE, dry_run=True))
            wait_until(lambda: any(entry.verb == verb for entry in client.audit.read()))
            client.enqueue("q", b"while it runs")
            server.terminate()
            assert server.wait() == 0
            with pytest.raises(FairleadError):
                scan.result()
        assert "calls are cut off" not in server.log
    with fairlead.open(tmp_path) as broker:
        assert (broker.stats("q").ready, broker.stats("q").dead) == (1, DEAD_LETTERS)
        assert not broker.audit.read()[0].count
