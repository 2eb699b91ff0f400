"""Clients that ask for answers of many parts, and read none: what they hold of the server has a bound, and
others go on.
"""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pyarrow.flight as flight

import fairlead
from fairlead import NewMessage
from fairlead.testing.server import ServerProcess, run_server
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersRead
from tests.client.scene import until
from tests.doors.flight.raw import RawChannel, pages
from tests.hostile.conftest import usage

READERS = 100
ROWS = 64
LARGE = bytes(1024 * 1024)


def refused(server: ServerProcess) -> float:
    with urlopen(f"http://{server.addresses['http']}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith('fairlead_refused_total{limit="unread_bytes"}')]
    return float(line.split()[-1])


def test_many_who_do_not_read_their_answers_do_not_fill_the_machine(tmp_path: Path) -> None:
    settings = {"durability": "os", "limits.max_inflight_bytes": "48MiB", "store.body_cache_bytes": "1MiB"}
    with (
        run_server(tmp_path / "data", http=True, settings=settings) as server,
        fairlead.connect(server.address) as client,
    ):
        client.create_queue("q")
        for _ in range(ROWS // 16):
            client.enqueue_many("q", [NewMessage(LARGE)] * 16)
        generation = client.consumers.register("etl", "q").generation
        assert client.consumers.claim("etl", "q", generation, 1, max_bytes=256 * 1024 * 1024).count == ROWS
        before = usage(server.pid)["rss"]
        with flight.connect(f"grpc://{server.addresses['flight']}") as connection:
            calls = {"read": ConsumersRead("etl", "q", generation, 1), "browse": Browse("q")}
            slow = [RawChannel(connection, verb) for _ in range(READERS // 2) for verb in calls]
            for channel, verb in zip(slow, [*calls] * READERS, strict=False):
                channel.send(pages(calls[verb]))
            until(lambda: refused(server) >= READERS // 2, "refusals")
            assert usage(server.pid)["rss"] - before < 500
            for channel in slow:
                channel.reader.cancel()
        # Once they are gone there is room again.
        assert (
            sum(batch.num_rows for batch in client.consumers.read_batches("etl", "q", generation, 1)) == ROWS
        )
        assert client.consumers.close("etl", "q", generation, 1).settled == {"completed": ROWS}
        assert server.stop() == 0
        assert "should not" not in server.log
