"""A server that is stopped, as by SIGSTOP or a machine without memory: its connections stay open, and nothing answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fairlead import Complete
from fairlead.errors import AnswerLost, ServerUnreachable
from fairlead.testing import run_server
from tests.client.clients import PATIENCE_S, connect


def test_calls_end_while_a_server_stands_still_and_nothing_is_doubled_when_it_goes_on(
    kind: str, tmp_path: Path
) -> None:
    with run_server(tmp_path / "data", flight=False) as server:
        address = f"fairlead://{server.address}"
        hasty = connect(kind, address, consumer="hasty", timeout="300ms", retry_for="600ms")
        patient = connect(kind, address, consumer="patient", timeout="300ms", retry_for="60s")
        patient.create_queue("q", visibility_timeout="1h")
        for n in range(3):
            patient.enqueue("q", b"before-%d" % n)
        held, other = hasty.claim("q", limit=2)
        server.pause()
        with ThreadPoolExecutor(12) as pool:
            calls: dict[str, Callable[[Any], Any]] = {
                "enqueue": lambda client: client.enqueue("q", b"%d" % id(client)),
                "settle": lambda client: client.settle([Complete(held if client is hasty else other)]),
                "claim": lambda client: client.claim("q", wait="1s" if client is hasty else "1m"),
                "stats": lambda client: client.stats("q"),
            }
            waiting = {name: pool.submit(call, patient) for name, call in calls.items()}
            ending = {name: pool.submit(call, hasty) for name, call in calls.items()}
            for name, future in ending.items():
                with pytest.raises((ServerUnreachable, AnswerLost)):
                    future.result(PATIENCE_S)
                assert not waiting[name].done()
            server.resume_process()
            answers = {name: future.result(PATIENCE_S) for name, future in waiting.items()}
        assert [result.outcome for result in answers["settle"]] == ["completed"]
        # What was given up may have been carried out, once.
        assert hasty.settle([Complete(held)])[0].outcome in ("completed", "lost_lease", "not_found")
        patient.goodbye("hasty")
        taken = Counter(delivery.payload for delivery in answers["claim"])
        while deliveries := patient.claim("q", limit=10):
            taken.update(delivery.payload for delivery in deliveries)
        must = Counter([b"before-2", b"%d" % id(patient)])
        assert must <= taken <= must + Counter([b"%d" % id(hasty)])
        hasty.close()
        patient.close()
        assert server.stop() == 0
