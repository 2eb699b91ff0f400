"""What the table of verbs says about durability, patience and slowness, compared with what the engine does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fairlead.request import VERBS, Request, Room
from fairlead.testing import ManualClock, Storage
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersClaim
from tests.faces.table import QUEUE, TABLE, furnish, outcome

#: Calls of durable verbs that change nothing, or nothing that a power cut must not undo.
WITHOUT_EFFECT = {
    "consumers.record",
    "drop: by header",
    "drop: dry run",
    "exchange: claim",
    "exchange: extend",
    "goodbye",
    "open_throttle",
    "redrive: by header",
    "redrive: dry run",
    "reset",
    "resume",
    "retry: by header",
    "settle: extend",
    "settle: start",
}


@pytest.mark.parametrize("name", [name for name in TABLE if name != "claim: by credit"])
def test_a_durable_verb_waits_for_the_disk_and_no_other_does(name: str) -> None:
    store = Storage()
    with store.open_broker(clock=ManualClock(), durability="fsync") as broker:
        thing = furnish(broker, QUEUE, "/nowhere")
        before = store.sync_calls
        if name == "keys.show: one's own":
            broker.keys.show(thing.key)
        else:
            assert outcome(TABLE[name].call, broker, thing).error in ("", "invalid_request")
        durable = VERBS[name.partition(":")[0]].request.durable and name not in WITHOUT_EFFECT
        assert (store.sync_calls > before) == durable


def test_a_verb_that_writes_nothing_is_not_durable() -> None:
    kinds = [verb.request for verb in VERBS.values()]
    assert not [kind.verb_name for kind in kinds if kind.durable and kind.room is Room.READS]


@pytest.mark.parametrize("kind", [verb.request for verb in VERBS.values()], ids=list(VERBS))
def test_a_verb_has_patience_if_it_has_a_wait(kind: type[Request[object]]) -> None:
    assert (kind.patience_ms is not Request.patience_ms) == ("wait" in kind.__struct_fields__)


@pytest.mark.parametrize(
    ("wait", "patience_ms"),
    [(None, 0), ("30s", 30_000), (timedelta(milliseconds=5), 5), ("soon", 0), (7, 0), ("-1s", 0)],
)
def test_patience_is_the_wait_and_a_wrong_one_is_for_the_engine_to_refuse(
    wait: object, patience_ms: int
) -> None:
    assert Claim("q", wait=wait).patience_ms() == patience_ms  # type: ignore[arg-type]
    assert ConsumersClaim("c", "q", 1, 1, wait=wait).patience_ms() == patience_ms  # type: ignore[arg-type]


def test_verbs_that_scan_or_work_in_steps_are_slow_and_those_of_every_message_are_not() -> None:
    for name, verb in VERBS.items():
        kind = verb.request
        scans = kind.shows_messages or kind.paged or "filter" in verb.fields
        assert kind.slow or not scans, name
    assert not [
        name
        for name in ("enqueue", "enqueue_many", "claim", "settle", "exchange", "ack", "nack")
        if VERBS[name].request.slow
    ]
