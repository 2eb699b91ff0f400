"""Views of the engine where the seeded runs do not come: bodies on disk, parts of ids, and budgets."""

from __future__ import annotations

from random import Random

import pytest

from fairlead import Complete, NewMessage
from fairlead.engine.broker import Broker
from fairlead.engine.engine import Engine
from fairlead.engine.find_ids import full_id, queues_of
from fairlead.engine.infos import show_all
from fairlead.engine.laws import broken_laws
from fairlead.engine.met import Met
from fairlead.engine.walk_ids import walk_ids
from fairlead.errors import AmbiguousId, BrokerClosed, InvalidRequest, MessageNotFound, ServerStopping
from fairlead.model.ids import find_id
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.browse import Browse, BrowseSplits
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.inspect import Find, Peek
from fairlead.verbs.operate import Bury, Drop
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle

#: Several pages of payloads.
BODIES = [b"%d:" % at + b"x" * 5_000 for at in range(12)]


@pytest.fixture
def engine() -> Engine:
    made = Engine(DictionaryStore(), clock=ManualClock())
    made.do(CreateQueue("q"))
    return made


def reopened(engine: Engine) -> Engine:
    """Its chunks have no payloads in memory."""
    return Engine(engine.store, clock=ManualClock())


def met_in(engine: Engine) -> list[Met]:
    queue_id = engine.memory.by_name["q"].record.queue_id
    return [met for page in walk_ids(engine, queue_id) for met in page]


@pytest.mark.parametrize("bodies", [BODIES, BODIES[:1], [b"small"] * 5])
def test_bodies_are_read_from_their_pages_and_not_kept_in_memory(engine: Engine, bodies: list[bytes]) -> None:
    ids = engine.do(EnqueueMany("q", [NewMessage(body) for body in bodies]))
    again = reopened(engine)
    before = [chunk.payloads for chunk in again.memory.chunks.values()]
    assert [info.payload for info in again.do(Browse("q"))] == bodies
    assert [info.payload for info in again.do(Peek("q", 100))] == bodies
    assert again.do(Find(ids[-1])).payload == bodies[-1]
    assert [chunk.payloads for chunk in again.memory.chunks.values()] == before


def test_a_message_that_goes_before_its_body_is_read_is_left_out_or_shown_as_it_was_met(
    engine: Engine,
) -> None:
    engine.do(EnqueueMany("q", [NewMessage(body) for body in BODIES]))
    again = reopened(engine)
    met = met_in(again)
    held = again.do(Claim("q", 100))
    for chunk in again.memory.chunks.values():
        chunk.payloads = None
    again.do(Settle([Complete(one) for one in held[:5]]))
    assert [info.payload for info in show_all(again, met)] == BODIES
    again.do(Settle([Complete(one) for one in held[5:]]))
    again.do(EnqueueMany("q", [NewMessage(b"of another message")] * 12))
    assert show_all(again, met) == []


def test_a_page_of_messages_that_are_all_gone_is_not_the_end(engine: Engine) -> None:
    ids = engine.do(EnqueueMany("q", [NewMessage(body) for body in BODIES]))
    engine.do(Drop("q", ids[:6]))
    assert [info.id for info in engine.do(Browse("q", limit=3))] == ids[6:9]
    assert [info.id for info in engine.do(Browse("q", limit=3, after=ids[1]))] == ids[6:9]
    assert engine.do(Browse("q", after=ids[-1])) == []


def test_splits_cover_a_queue_once(engine: Engine) -> None:
    ids = [one for _ in range(9) for one in engine.do(EnqueueMany("q", [NewMessage(b"")] * 11))]
    engine.do(Bury("q", Random(1).sample(ids, 30)))
    for view, count in (("messages", 69), ("dead", 30)):
        splits = engine.do(BrowseSplits("q", view, 7))
        seen = [info.id for low, high in splits for info in engine.do(Browse("q", view, low, high))]
        assert len(splits) == 7
        assert len(seen) == len(set(seen)) == count


def test_a_part_of_an_id_finds_its_only_message(engine: Engine) -> None:
    first, second = engine.do(EnqueueMany("q", [NewMessage(b"1"), NewMessage(b"2")]))
    assert engine.do(Find(first[:30])).id == first
    assert engine.do(Find(second[-8:].upper(), "q")).id == second
    with pytest.raises(MessageNotFound):
        engine.do(Find(second[-8:]))
    with pytest.raises(AmbiguousId) as ambiguous:
        engine.do(Find(first[:8]))
    assert first in str(ambiguous.value)
    with pytest.raises(InvalidRequest):
        engine.do(Find("xyz"))


def test_a_part_of_an_id_is_found_among_visible_queues_only(engine: Engine) -> None:
    engine.do(CreateQueue("secret"))
    (mine,) = engine.do(EnqueueMany("q", [NewMessage(b"")]))
    (other,) = engine.do(EnqueueMany("secret", [NewMessage(b"")]))

    def visible(name: str) -> bool:
        return name == "q"

    assert full_id(engine, mine[:8], None, visible) == mine
    for text, queue in ((other, None), (other[-8:], "secret"), (other[:30], None)):
        with pytest.raises(MessageNotFound):
            full_id(engine, text, queue, visible)
    raw_ids = [find_id(mine) or b"", find_id(other) or b"", bytes(16)]
    assert queues_of(engine, raw_ids) == ["q", "secret", None]


def test_looks_share_a_budget_that_is_held_until_the_answer_is_written() -> None:
    broker = Broker(DictionaryStore(), clock=ManualClock())
    broker.create_queue("q")
    broker.enqueue_many("q", [NewMessage(body) for body in BODIES])
    looks = broker.engine.looks
    with broker.answering():
        broker.peek("q", limit=2)
        assert looks.held == sum(map(len, BODIES[:2]))
    assert looks.held == 0
    looks.limit = 4 * len(BODIES[0]) + 4
    assert len(broker.peek("q", limit=12)) == 1


def test_views_end_when_the_server_stops_or_the_engine_is_closed(engine: Engine) -> None:
    engine.do(EnqueueMany("q", [NewMessage(b"")] * 3))
    walk = walk_ids(engine, engine.memory.by_name["q"].record.queue_id)
    engine.interrupt_waits()
    with pytest.raises(ServerStopping):
        next(walk)
    engine.close()
    with pytest.raises(BrokerClosed):
        engine.do(Browse("q"))


def test_views_change_nothing(engine: Engine) -> None:
    ids = engine.do(EnqueueMany("q", [NewMessage(body) for body in BODIES]))
    commit = engine.store.last_commit
    for request in (Browse("q"), Peek("q"), Find(ids[0]), BrowseSplits("q", n=3)):
        engine.do(request)
    assert engine.store.last_commit == commit
    assert broken_laws(engine) == []
