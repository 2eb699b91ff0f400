"""Every verb through every face: refused without its right, carried out with it, and recorded in the audit.

The cases come from the table of verbs (`fairlead.request.VERBS`), so a new verb has its cases by itself; without
its row in `table.py` they fail and say what to add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
import typer
from fila.v1 import admin_pb2 as published_admin
from fila.v1 import service_pb2 as published_service

from fairlead.cli.app import app
from fairlead.model.access import AuditRecord, Right
from fairlead.request import VERBS
from fairlead.server.fila.v1 import admin_pb2, service_pb2
from tests.faces.conftest import Site
from tests.faces.doors import COMMANDS, FILA, OTHER_COMMANDS, outcome_at
from tests.faces.table import EVERYWHERE, FORBIDDEN, HIDDEN, PATTERNS, READ, SECRET, TABLE, Row, Thing

Call = Callable[[Any, Thing], object]

#: Where the caller of each face is seen to come from.
SOURCES = {
    "in process": "in process",
    "asyncio": "ipv4:127.0.0.1:",
    "fila": "ipv4:127.0.0.1:",
    "command": "ipv4:127.0.0.1:",
    "resp": "ipv4:127.0.0.1:",
    "words": "ipv4:127.0.0.1:",
    "client": "ipv4:127.0.0.1:",
    "do": "ipv4:127.0.0.1:",
}
FILA_CALLS = dict(FILA.values())
STRANGERS = {f"{right}:store/*" for right in Right}


def verb_of(name: str) -> str:
    return name.partition(":")[0]


def rows_of(verb: str, rows: dict[str, Any]) -> list[str]:
    return [name for name in rows if verb_of(name) == verb]


def all_cases() -> Iterator[tuple[str, str]]:
    """(face, row); a verb that has no row yet is a case of its own name."""
    for verb in VERBS:
        for face in ("in process", "resp", "words", "client", "asyncio", "do"):
            yield from ((face, name) for name in rows_of(verb, TABLE) or [verb])
        yield from (("fila", name) for name in rows_of(verb, FILA_CALLS))
        yield from (("command", name) for name in rows_of(verb, COMMANDS))


CASES = list(all_cases())


def row_and_call(face: str, name: str) -> tuple[Row, Call]:
    row = TABLE.get(name)
    if row is None:
        pytest.fail(
            f"the verb {name!r} has no row: add it to TABLE in tests/faces/table.py, with the rights it needs, a call"
            " and, if the audit records it, its `entry`"
        )
    return row, {"fila": FILA_CALLS, "command": COMMANDS}.get(face, {}).get(name, row.call)


def enough(row: Row) -> set[str]:
    """No more than the row asks for; where any right will do, one that is good for nothing else."""
    pattern = "*" if row.where == EVERYWHERE else "shop/*"
    if row.needs is None:
        return set()
    return {f"{right}:{pattern}" for right in row.needs or (Right.QUARANTINE,)}


def nearly_enough(row: Row) -> set[str]:
    """Every right everywhere but the one that it takes; where any right will do, every right elsewhere."""
    if row.where == PATTERNS:
        return set()
    if not row.needs or row.seen:
        return STRANGERS
    return STRANGERS | {
        f"{right}:{pattern}" for right in set(Right) - {row.needs[0]} for pattern in ("shop/*", "*")
    }


@pytest.mark.sample(200)
@pytest.mark.parametrize(("face", "name"), CASES)
def test_without_its_right_a_verb_changes_nothing_tells_nothing_and_leaves_no_entry(
    site: Site, face: str, name: str
) -> None:
    row, call = row_and_call(face, name)
    if row.needs is None:
        return
    # A command looks before it acts, and whoever has some right may look.
    grants = STRANGERS if face == "command" and row.where != PATTERNS else nearly_enough(row)
    if name == "keys.create: without rights":
        # Admin of anything is enough for that.
        grants = {grant for grant in grants if not grant.startswith("admin:")}
    caller, before = site.face(face, grants), site.state()
    with site.new_entries() as entries:
        there = outcome_at(caller, call, site.exhibit)
        not_there = outcome_at(caller, call, site.missing())
    assert there == not_there
    if face == "command" and row.refused == FORBIDDEN:
        assert there.error in (FORBIDDEN, "queue_not_found", "message_not_found")
    else:
        assert (there.error == FORBIDDEN) == (row.refused == FORBIDDEN)
    assert site.state() == before
    assert entries == []


@pytest.mark.sample(200)
@pytest.mark.parametrize(("face", "name"), CASES)
def test_with_its_right_a_verb_is_carried_out_and_leaves_its_entry(site: Site, face: str, name: str) -> None:
    row, call = row_and_call(face, name)
    # A look needs nothing of its own.
    thing = site.thing() if row.needs else site.exhibit
    grants = enough(row)
    with site.new_entries() as entries:
        got = outcome_at(site.face(face, grants), call, thing)
    assert got.error == "", got.said
    if row.refused == HIDDEN:
        assert got != outcome_at(site.face(face, STRANGERS), call, site.exhibit)
    if row.entry is not None and row.entry.of_reading:
        assert entries == [], "a caller who may not read payloads has read none"
        grants = grants | {f"{READ}:shop/*"}
        with site.new_entries() as entries:
            assert outcome_at(site.face(face, grants), call, thing).error == ""
    check_entries(entries, face, name, thing, site.key(grants).info.id)


def check_entries(entries: list[AuditRecord], face: str, name: str, thing: Thing, who: str) -> None:
    expected = TABLE[name].entry
    verb = (expected.verb if expected is not None else "") or verb_of(name)
    if face == "command":
        # A command may look before it acts, and try a redrive dry; what it was called for is last.
        entries = [entry for entry in entries if entry.verb == verb][-1:]
    if expected is None:
        recorded = [entry.verb for entry in entries]
        assert recorded == [], (
            f"{name} leaves an entry: say which in its row of tests/faces/table.py (`entry`)"
        )
        return
    (entry,) = entries
    queue = expected.queue.format(queue=thing.queue)
    assert (entry.verb, entry.queue, entry.count, entry.outcome) == (verb, queue, expected.count, "done")
    assert (entry.who, entry.name) == (who, "a caller")
    assert entry.source.startswith(SOURCES[face])
    kept = str(entry)
    assert SECRET not in kept.replace(f"{SECRET}-{thing.token}", "")
    assert "fl_" not in kept, "a secret of an API key begins so"


def test_the_tables_name_only_verbs_and_rows_that_exist() -> None:
    assert {verb_of(name) for name in TABLE} == set(VERBS)
    assert {*FILA_CALLS, *COMMANDS} <= set(TABLE)


def test_every_call_of_fila_makes_a_row() -> None:
    described = {
        method.name
        for module in (service_pb2, admin_pb2, published_service, published_admin)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert described == set(FILA)


class Ran(Exception): ...


class NotingFace:
    def run(self, *words: str) -> Any:
        raise Ran(*words)


def test_every_command_makes_a_row_or_is_known_to_make_none(site: Site) -> None:
    made = {*OTHER_COMMANDS, *(f"do {verb}" for verb in VERBS)}
    for call in COMMANDS.values():
        with pytest.raises(Ran) as ran:
            call(NotingFace(), site.exhibit)
        words = ran.value.args
        made |= {" ".join(words[:1]), " ".join(words[:2])}
    missing = set(commands(typer.main.get_command(app))) - made
    assert not missing, (
        f"add {sorted(missing)} to COMMANDS in tests/faces/doors.py, each beside the row it makes"
    )


def commands(found: click.Command, *path: str) -> Iterator[str]:
    inner = getattr(found, "commands", None)
    if inner is None:
        yield " ".join(path)
        return
    for name, command in inner.items():
        yield from commands(command, *path, name)
