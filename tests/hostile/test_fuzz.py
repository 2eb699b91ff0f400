"""A short run of the random strangers, with seeds that do not change; those that once found something come first."""

from __future__ import annotations

from fairlead.broker.broker import Broker
from fairlead.store.memory import MemoryStore
from fairlead.testing.server import ServerProcess
from tests.hostile import fuzz

#: 458: a list without offsets, whose size was asked for before it was checked: the process died. 3992: a name that is no text.
FOUND = [458, 3992]


def test_no_random_request_does_more_to_the_code_that_reads_it_than_be_refused() -> None:
    with Broker(MemoryStore()) as broker:
        for seed in (*FOUND, *range(3000)):
            fuzz.decoders(seed, broker)
        assert broker.queues() == []


def test_no_random_stranger_does_more_to_a_server_than_be_refused(server: ServerProcess) -> None:
    for seed in (*FOUND, *range(200)):
        fuzz.live(seed, server.address)
