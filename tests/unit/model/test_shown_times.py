from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

import fairlead.engine
from fairlead.model.failure import FailureRecord
from fairlead.model.message import HELD, MessageState
from fairlead.model.shown_times import TIMES, shown

#: A field with such a name is an instant, unless it is listed below.
INSTANT = re.compile(r"(_ms|_at|_until|since|^until|_due)$")
LENGTHS = {"ttl_ms"}
#: Modules that compare with the clocks of other machines, or show when something was done; all others go by
#: the store's time.
BY_THE_WALL = {"audit_trail.py", "key_ring.py", "store_time.py", "transaction.py"}


def names(kind: type) -> set[str]:
    fields = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else dataclasses.fields(kind)
    return {field.name for field in fields}


@pytest.mark.parametrize("kind", TIMES, ids=lambda kind: kind.__name__)
def test_every_instant_of_an_answer_is_shown_by_the_wall_clock(kind: type) -> None:
    instants = {name for name in names(kind) if INSTANT.search(name)} - LENGTHS
    assert set(TIMES[kind].times) == instants


def test_what_is_inside_an_answer_is_shown_too_and_what_has_no_time_stays() -> None:
    state = MessageState(1, due_ms=HELD, dead_since_ms=100, failures=(FailureRecord(50, 1, 2, "", "", ""),))
    (moved,) = shown([state], 1000)
    assert (moved.due_ms, moved.done_ms, moved.dead_since_ms) == (HELD, 0, 1100)
    assert (moved.failures[0].at_ms, moved.failures[0].due_ms) == (1050, 0)
    assert shown(state, 0) is state


def test_the_engine_reads_the_wall_clock_only_where_it_must() -> None:
    folder = Path(fairlead.engine.__file__).parent
    reading = {path.name for path in folder.rglob("*.py") if "clock.now_ms()" in path.read_text()}
    assert reading == BY_THE_WALL
