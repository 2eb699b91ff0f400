"""A server that is killed, told to stop or made to stand still in the middle of things."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import fairlead
from fairlead import NewMessage, errors
from fairlead.testing.server import PATIENCE_S, ServerProcess


def until_no_intent(client: fairlead.Client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while client.intents():
        assert time.monotonic() < deadline
        pause.wait(0.05)


@pytest.mark.parametrize("verb", ["purge", "redrive", "delete_queue"])
def test_a_server_killed_during_a_long_operation_has_done_all_of_it_or_nothing(
    own_server: ServerProcess, verb: str
) -> None:
    count = 30_000
    with fairlead.connect(own_server.address) as client:
        if verb == "redrive":
            client.quarantine("q", [NewMessage(b"x")] * count)
        else:
            client.enqueue_many("q", [NewMessage(b"x")] * count)
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(getattr(client, verb), "q")
            seen = threading.Event()
            with fairlead.connect(own_server.address) as other:
                while not answer.done() and not other.intents():
                    seen.wait(0.001)
            own_server.kill()
            own_server.restart()
            error = answer.exception(timeout=PATIENCE_S)
        assert error is None or isinstance(error, errors.AnswerLost)
    with fairlead.connect(own_server.address) as client:
        until_no_intent(client)
        if verb == "delete_queue" and not client.queues():
            return
        stats = client.stats("q")
        assert (stats.ready, stats.dead) in {
            "redrive": [(0, count), (count, 0)],
            "purge": [(count, 0), (0, 0)],
            "delete_queue": [(count, 0)],
        }[verb]


def test_a_server_told_to_stop_under_a_hundred_clients_keeps_what_it_confirmed(
    own_server: ServerProcess,
) -> None:
    confirmed: list[str] = []
    unclear: list[str] = []
    enough = threading.Event()

    def hammer(_: int) -> str:
        try:
            # Some have not connected yet when the first thousand are there.
            with fairlead.connect(own_server.address, retry_for=timedelta(seconds=1)) as client:
                while True:
                    confirmed.append(client.enqueue("q", b"x"))
                    if len(confirmed) >= 1000:
                        enough.set()
        except errors.AnswerLost as lost:
            unclear.append(lost.code)
            return lost.code
        except errors.FairleadError as refused:
            return refused.code

    with ThreadPoolExecutor(100) as threads:
        ends = threads.map(hammer, range(100))
        assert enough.wait(PATIENCE_S)
        own_server.terminate()
        assert own_server.wait() == 0
        assert set(ends) <= {"server_unreachable", "server_stopping", "answer_lost"}
    own_server.restart()
    with fairlead.connect(own_server.address) as client:
        assert len(confirmed) <= client.stats("q").ready <= len(confirmed) + len(unclear)
    assert "cut off" not in own_server.log


def test_a_request_to_a_server_that_stands_still_is_answered_once_when_it_goes_on(
    own_server: ServerProcess,
) -> None:
    with fairlead.connect(own_server.address) as client, ThreadPoolExecutor(1) as thread:
        client.enqueue("q", b"1")
        own_server.pause()
        waits = thread.submit(client.enqueue, "q", b"2")
        own_server.resume_process()
        assert waits.result(PATIENCE_S)
        assert client.stats("q").ready == 2
