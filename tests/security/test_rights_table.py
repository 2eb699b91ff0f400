"""Every verb against every right in every place: allowed where the table says so, refused everywhere else,
and a refusal tells nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairlead import Broker
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.model.access import Right
from fairlead.request import VERBS, Caller
from fairlead.testing import ManualClock, open_in_memory
from tests.faces.doors import InProcessFace
from tests.faces.table import FORBIDDEN, HIDDEN, ON_QUEUE, PATTERNS, QUEUE, TABLE, Thing, furnish, outcome

#: Each right alone, all of them, and all but one: so that every right is seen to be enough, and to be needed.
SETS = [{right} for right in Right] + [set(Right)] + [set(Right) - {right} for right in Right]
HOLDERS = [*itertools.product(SETS, PATTERNS), (set(), "*")]

#: A store in memory has no checkpoints; that it was asked for one is enough.
NOT_IN_MEMORY = {"checkpoint": "invalid_request"}

GROUPS = {"config", "keys", "audit", "runbooks", "consumers", "staging"}
#: What an admitted caller has beside verbs; no door hands these on.
CALLERS_OWN = {"do", "once", "caller", "clock", "now_ms", "rights", "put_back", "browse_pages"}
#: Forms of `consumers.read_pages`.
GROUPS_OWN = {"consumers.read"}


@contextmanager
def scene(*, furnished: bool) -> Iterator[tuple[Broker, Thing | None]]:
    broker = open_in_memory(clock=ManualClock())
    try:
        yield broker, furnish(broker, QUEUE, "/nowhere") if furnished else None
    finally:
        broker.close()


def holder(broker: Broker, rights: set[Right], pattern: str) -> InProcessFace:
    key = broker.keys.create("holder", [f"{right}:{pattern}" for right in rights])
    return InProcessFace(AdmittedCaller(Layers(broker, keys=True), Caller(key.info.id, "holder", "a test")))


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


def test_a_caller_has_the_verbs_of_the_table_and_no_other() -> None:
    caller = AdmittedCaller(Layers(open_in_memory(clock=ManualClock())), Caller(None, "x", "y"))
    public = {name for name in dir(caller) if not name.startswith("_")}
    assert public - CALLERS_OWN - GROUPS == {verb for verb in VERBS if "." not in verb}
    for group in GROUPS:
        grouped = {f"{group}.{name}" for name in dir(getattr(caller, group)) if not name.startswith("_")}
        assert grouped - GROUPS_OWN - {f"{group}.do"} == {
            verb for verb in VERBS if verb.startswith(f"{group}.")
        }
