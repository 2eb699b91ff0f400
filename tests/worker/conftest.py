from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import Broker
from fairlead.testing import open_in_memory
from tests.worker.scene import QUEUE


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with one queue whose messages die on their first failure, like those of a runbook queue by
    default.
    """
    with open_in_memory(durability="os") as broker:
        broker.create_queue(QUEUE, retry={"policy": "none"}, retry_in_stream={"policy": "none"})
        yield broker


@pytest.fixture
def journal(tmp_path) -> str:
    return str(tmp_path / "journal.jsonl")
