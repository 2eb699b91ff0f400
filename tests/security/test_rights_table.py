"""Every verb against every right in every place: allowed where the table says so, refused everywhere else,
and a refusal tells nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead import Broker
from fairlead.model.access import Right
from fairlead.server import answers
from fairlead.server.guard import Caller, GuardedBroker
from fairlead.testing import ManualClock, open_in_memory
from fairlead.wire.calls import ClaimCall
from fairlead.wire.views import ADMIN
from tests.security.rights import FORBIDDEN, HIDDEN, ON_QUEUE, PATTERNS, QUEUE, TABLE, Thing, furnish, outcome

#: Each right alone, all of them, and all but one: so that every right is seen to be enough, and to be needed.
SETS = [{right} for right in Right] + [set(Right)] + [set(Right) - {right} for right in Right]
HOLDERS = [*itertools.product(SETS, PATTERNS), (set(), "*")]

#: A store in memory has no checkpoints; that it was asked for one is enough.
NOT_IN_MEMORY = {"checkpoint": "invalid_request"}

#: What a `Broker` has that no caller of a server can ask for.
NOT_FOR_CALLERS = {
    "clock",
    "now_ms",
    "answering",
    "observe",
    "measures",
    "queue_names",
    "queues_of",
    "full_id",
    "run_due",
    "interrupt_waits",
    "close",
}
GROUPS = {"config", "keys", "audit", "runbooks", "consumers", "staging"}
#: What a guard has beside verbs; no door hands these on.
GUARDS_OWN = {
    "caller",
    "clock",
    "now_ms",
    "answering",
    "grants",
    "may",
    "sees",
    "need",
    "need_everywhere",
    "need_some",
    "writes_down",
    "put_back",
    "browse_pages",
}
#: And its groups.
GROUPS_OWN = {"consumers.read_pages"}


class InProcess:
    """A guard as a door uses it."""

    def __init__(self, guard: GuardedBroker) -> None:
        self._guard = guard

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._guard, verb)

    def consume_one(self, queue: str) -> int:
        return sum(
            len(deliveries) for deliveries in answers.claim_by_credit(self._guard, ClaimCall(queue, credit=1))
        )


@contextmanager
def scene(*, furnished: bool) -> Iterator[tuple[Broker, Thing | None]]:
    broker = open_in_memory(clock=ManualClock())
    try:
        yield broker, furnish(broker, QUEUE, "/nowhere") if furnished else None
    finally:
        broker.close()


def holder(broker: Broker, rights: set[Right], pattern: str) -> InProcess:
    key = broker.keys.create("holder", [f"{right}:{pattern}" for right in rights])
    return InProcess(GuardedBroker(broker, Caller(key.info.id, "holder", "a test")))


def everything_in(broker: Broker) -> object:
    """All that a call could change, but for which keys were used when."""
    queues = {info.name: (info, broker.stats(info.name, keys=True)) for info in broker.queues()}
    messages = [
        broker.peek(name, where=where, limit=100)
        for name in queues
        for where in ("ready", "waiting", "leased", "done")
    ]
    keys = [(info.id, info.grants, info.expires_at) for info in broker.keys.list()]
    bulk = broker.consumers.list(), broker.staging.list()
    return (
        queues,
        messages,
        keys,
        bulk,
        broker.config.list(),
        broker.runbooks.list(),
        broker.intents(),
        broker.audit.read(limit=10_000),
    )


@pytest.mark.parametrize("name", TABLE)
def test_a_verb_is_refused_to_every_key_without_its_right_alike_whether_the_thing_exists_or_not(
    name: str,
) -> None:
    row = TABLE[name]
    with scene(furnished=True) as (full, thing), scene(furnished=False) as (empty, _):
        assert thing is not None
        refused = [(rights, pattern) for rights, pattern in HOLDERS if not row.allows(rights, pattern)]
        inside = [
            (rights, pattern, holder(full, rights, pattern), holder(empty, rights, pattern))
            for rights, pattern in refused
        ]
        before = everything_in(full)
        for rights, pattern, in_full, in_empty in inside:
            there, not_there = outcome(row.call, in_full, thing), outcome(row.call, in_empty, thing)
            if row.seen and rights and pattern in ON_QUEUE:
                assert there.error == row.seen, (rights, pattern)
                continue
            assert there == not_there, (rights, pattern)
            assert (there.error == FORBIDDEN) == (row.refused == FORBIDDEN), (rights, pattern, there)
        assert everything_in(full) == before


@pytest.mark.parametrize("name", TABLE)
def test_a_verb_is_allowed_to_every_key_with_its_right(name: str) -> None:
    row = TABLE[name]
    with scene(furnished=False) as (empty, _):
        for rights, pattern in [holding for holding in HOLDERS if row.allows(*holding)]:
            with scene(furnished=True) as (full, thing):
                assert thing is not None
                got = outcome(row.call, holder(full, rights, pattern), thing)
                assert got.error == NOT_IN_MEMORY.get(name, ""), (rights, pattern, got)
                if row.refused == HIDDEN:
                    assert got != outcome(row.call, holder(empty, rights, pattern), thing)


def test_every_verb_is_in_the_table() -> None:
    broker = open_in_memory(clock=ManualClock())
    verbs = {name.partition(":")[0] for name in TABLE}
    hot = {
        "enqueue",
        "enqueue_many",
        "claim",
        "settle",
        "exchange",
        "consumers.claim",
        "consumers.read",
        "consumers.record",
        "staging.stage",
    }
    assert verbs == set(ADMIN) | hot
    assert {name for name in vars(Broker) if not name.startswith("_")} - NOT_FOR_CALLERS == {
        verb for verb in verbs if "." not in verb
    }
    assert {name for name in vars(broker) if not name.startswith("_")} == GROUPS
    broker.close()


def test_a_guard_has_the_verbs_of_the_table_and_no_other() -> None:
    guard = GuardedBroker(open_in_memory(clock=ManualClock()), Caller(None, "x", "y"))
    verbs = {name.partition(":")[0] for name in TABLE}
    public = {name for name in dir(guard) if not name.startswith("_")}
    assert public - GUARDS_OWN - GROUPS == {verb for verb in verbs if "." not in verb}
    for group in GROUPS:
        grouped = {f"{group}.{name}" for name in dir(getattr(guard, group)) if not name.startswith("_")}
        assert grouped - GROUPS_OWN == {verb for verb in verbs if verb.startswith(f"{group}.")}
