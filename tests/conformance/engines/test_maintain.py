"""Checkpoints of the engine, and how many queues it may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.config import Settings
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.errors import InvalidRequest, LimitReached, QueueExists
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.keys import KeysCreate
from fairlead.verbs.maintain import Checkpoint
from fairlead.verbs.queues import CreateQueue
from tests.turns import new_place


def test_a_checkpoint_opens_as_a_store_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock()
    with Broker(RocksKeyValueStore.open(tmp_path / "data"), clock=clock) as broker:
        broker.do(CreateQueue("q"))
        place = new_place(broker)
        shown = broker.once(Enqueue("q", b"before"), **place)
        key = broker.do(KeysCreate("a"))
        broker.do(Checkpoint(tmp_path / "copy"))
        broker.do(Enqueue("q", b"after"))
        with pytest.raises(InvalidRequest):
            broker.do(Checkpoint(tmp_path / "copy"))
    with Broker(RocksKeyValueStore.open(tmp_path / "copy"), clock=clock) as copy:
        assert broken_laws(copy.engine) == []
        assert copy.once(Enqueue("q", b"before"), **place) == shown
        assert copy.key_ring.authenticate(key.secret).name == "a"
        assert [one.payload for one in copy.do(Claim("q", 5))] == [b"before"]


def test_a_server_writes_checkpoints_to_its_directory_only(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    settings = Settings(checkpoint_dir=str(kept))
    with Broker(RocksKeyValueStore.open(tmp_path / "data"), clock=ManualClock(), settings=settings) as broker:
        for path in (tmp_path / "elsewhere", "../elsewhere", 5):
            with pytest.raises(InvalidRequest):
                broker.do(Checkpoint(path))  # type: ignore[arg-type]
        broker.do(Checkpoint("monday"))
        assert (kept / "monday").is_dir()
        broker.do(CreateQueue("q"))


def test_there_are_only_so_many_queues() -> None:
    broker = Broker(DictionaryStore(), clock=ManualClock(), settings=Settings(max_queues=2))
    broker.do(CreateQueue("a"))
    broker.do(CreateQueue("b"))
    with pytest.raises(LimitReached) as refused:
        broker.do(CreateQueue("c"))
    assert refused.value.fields == {"what": "queues", "limit": 2}
    with pytest.raises(QueueExists):
        broker.do(CreateQueue("a"))
    assert broken_laws(broker.engine) == []
