"""A disk that runs full, seen from a client: what goes in is refused at once and by name, what is there can
be finished.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fairlead
from fairlead import Complete, NewMessage, errors
from fairlead.testing import run_server
from tests.turns import turn


def test_a_full_disk_refuses_what_comes_and_lets_finish_what_is_there(tmp_path: Path) -> None:
    settings: dict[str, object] = {"durability": "os"}
    full = settings | {"store.disk_reserve_bytes": 1 << 60}
    with (
        run_server(tmp_path / "data", settings=settings) as server,
        fairlead.connect(server.address) as client,
    ):
        client.create_queue("q")
        ids = client.enqueue_many("q", [NewMessage(b"")] * 3)
        assert server.stop() == 0
    with run_server(tmp_path / "data", settings=full) as server, fairlead.connect(server.address) as client:
        with pytest.raises(errors.StoreFull):
            client.enqueue("q", b"too much")
        deliveries = client.claim("q", limit=2)
        assert [
            result.outcome for result in client.settle([Complete(delivery) for delivery in deliveries])
        ] == ["completed"] * 2
        with pytest.raises(errors.StoreFull):
            turn(client, "me", enqueue={"q": [NewMessage(b"too much")]})
        assert [info.id for info in client.peek("q")] == ids[2:]
        assert server.stop() == 0
    with (
        run_server(tmp_path / "data", settings=settings) as server,
        fairlead.connect(server.address) as client,
    ):
        assert client.enqueue("q", b"fits again")
        assert client.stats("q").ready == 2
