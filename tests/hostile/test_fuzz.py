"""A short run of the random strangers, with seeds that do not change; those that once found something come
first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.middleware.stack import Layers
from fairlead.testing import open_in_memory
from fairlead.testing.server import ServerProcess
from tests.hostile import fuzz, strangers


def test_no_random_request_does_more_to_the_code_that_reads_it_than_be_refused() -> None:
    with open_in_memory() as broker:
        for seed in range(3000):
            fuzz.decoders(seed, broker)
        assert broker.queues() == []


def test_no_random_request_in_bulk_does_more_than_be_refused_or_done() -> None:
    with open_in_memory() as broker:
        broker.create_queue("gone")
        guard = Layers(broker).admit(None, "a test")
        for seed in range(3000):
            if seed % 100 == 0 and seed < 2000:
                broker.enqueue("gone", b"x")
                generation = broker.consumers.register("c", "gone").generation
                broker.consumers.claim("c", "gone", generation, 1)
                for verb in ("consumers.record", "read"):
                    fuzz.BULK[verb][1]["generation"] = generation
            fuzz.decoders(seed, guard, fuzz.BULK)
        assert broker.consumers.show("c", "gone").open == 1
        assert broker.staging.list()


def test_no_random_stranger_does_more_to_a_server_than_be_refused(server: ServerProcess) -> None:
    for seed in range(200):
        fuzz.live(seed, server.addresses["flight"])
    for seed in range(150):
        fuzz.live(seed, server.addresses["flight"], fuzz.BULK)


@pytest.mark.parametrize(
    ("stranger", "door"),
    [
        ("fila", "grpc"),
        ("http", "http"),
        ("resp", "resp"),
        ("noise", "flight"),
        ("noise", "grpc"),
        ("noise", "resp"),
    ],
)
def test_no_random_stranger_at_any_port_is_more_than_answered_or_hung_up_on(
    server: ServerProcess, stranger: str, door: str
) -> None:
    for seed in range(60):
        getattr(strangers, stranger)(seed, server.addresses[door])


@pytest.mark.skipif(sys.platform != "linux", reason="atheris is only to be had for Linux")
def test_a_short_look_for_findings_with_the_help_of_coverage_finds_none(tmp_path: Path) -> None:
    """`make fuzz SECONDS=600` looks longer. The same seed, but not the same inputs on every machine."""
    command = [
        sys.executable,
        "-m",
        "tests.hostile.guided",
        "all",
        "5",
        str(tmp_path / "corpus"),
        str(tmp_path),
        "-seed=1",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=300, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "number_of_executed_units" in done.stderr
