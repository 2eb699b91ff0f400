"""The table of rights at every door of a real server: each verb with the right key, and with one that lacks
nothing but the right.
"""

from __future__ import annotations

import itertools
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fila.v1 import admin_pb2 as published_admin
from fila.v1 import service_pb2 as published_service

import fairlead
from fairlead import Client, DeliveryRef, verify
from fairlead.model.access import EVERY_RIGHT, Right
from fairlead.model.ids import IdSource, show_id
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.server.fila.v1 import admin_pb2, service_pb2
from fairlead.testing import ServerProcess, run_server
from tests.security.faces import (
    COMMANDS,
    FILA,
    AioFace,
    CommandFace,
    CommandRefused,
    FilaFace,
    FlightFace,
    outcome_at,
)
from tests.security.rights import EVERYWHERE, FORBIDDEN, HIDDEN, TABLE, Row, Thing, furnish

FACES: dict[str, type] = {"flight": FlightFace, "aio": AioFace, "fila": FilaFace, "command": CommandFace}

#: How each door says a row: the same verbs at those of fairlead, and what there is at the others.
SAID: dict[str, dict[str, Callable[[Any, Thing], object]]] = {
    "flight": {name: row.call for name, row in TABLE.items()},
    "aio": {name: row.call for name, row in TABLE.items()},
    "fila": dict(FILA.values()),
    "command": COMMANDS,
}
EVERY_CALL = [(door, name) for door, calls in SAID.items() for name in calls]
STRANGERS = {f"{right}:store/*" for right in Right}

_numbers = itertools.count(1)
_ids = IdSource()


@dataclass
class Site:
    """A server that asks for keys, one who may do everything, and callers by the rights they have."""

    server: ServerProcess
    root: Client
    #: Never changed, because nobody who is refused may change it.
    exhibit: Thing
    before: tuple[object, ...]
    secrets: dict[frozenset[str], str] = field(default_factory=dict)
    faces: dict[tuple[str, frozenset[str]], Any] = field(default_factory=dict)

    def face(self, door: str, grants: set[str]) -> Any:
        """Keys and connections are made once for each set of grants."""
        wanted = frozenset(grants)
        if wanted not in self.secrets:
            self.secrets[wanted] = self.root.keys.create("a caller", sorted(grants)).secret
        if (door, wanted) not in self.faces:
            address = self.server.addresses["grpc" if door == "fila" else "flight"]
            self.faces[door, wanted] = FACES[door](address, self.secrets[wanted])
        return self.faces[door, wanted]

    def thing(self) -> Thing:
        number = next(_numbers)
        return furnish(self.root, f"shop/own.{number:06}", f"copy-{number:06}", f"token-{number:06}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("rights")
    settings = {"durability": "os", "auth.mode": "keys"}
    with run_server(data / "data", grpc=True, http=True, settings=settings) as server:
        secret = (data / "data" / BOOTSTRAP_FILE).read_text().strip()
        with fairlead.connect(server.address, api_key=secret) as root:
            exhibit = furnish(root, "shop/own.exhibit", "copy-exhibit", "token-exhibit")
            site = Site(server, root, exhibit, state_of(root, exhibit))
            yield site
            for face in site.faces.values():
                face.close()
        assert server.stop() == 0
        assert "Traceback" not in server.log
    assert verify(data / "data").problems == []


def missing() -> Thing:
    """Like a thing in every respect, but that it is not there."""
    number = next(_numbers)
    ids = [show_id(raw_id) for raw_id in _ids.next(1_800_000_000_000, 4)]
    return Thing(
        f"shop/own.{number:06}x",
        *ids[:3],
        DeliveryRef(ids[3], "1000fffff"),
        900_000 + number,
        f"{number:a>12}",
        f"none-{number:06}",
        f"t-{number:06}",
    )


def enough(row: Row) -> set[str]:
    pattern = "*" if row.where == EVERYWHERE else "shop/*"
    return {
        f"{right}:{pattern}"
        for right in (row.needs or ((Right.QUARANTINE,) if row.needs is not None else ()))
    }


def nearly_enough(row: Row) -> set[str]:
    """Every right everywhere but the one that it takes; where any right will do, every right elsewhere."""
    if not row.needs or row.seen:
        return STRANGERS
    return STRANGERS | {
        f"{right}:{pattern}" for right in set(Right) - {row.needs[0]} for pattern in ("shop/*", "*")
    }


@pytest.mark.parametrize(
    ("door", "name"), [(door, name) for door, name in EVERY_CALL if TABLE[name].needs is not None]
)
def test_a_door_refuses_what_the_table_refuses_and_does_not_tell_what_exists(
    site: Site, door: str, name: str
) -> None:
    row, call = TABLE[name], SAID[door][name]
    # A command looks before it acts, and whoever has some right may look.
    grants = STRANGERS if door == "command" else nearly_enough(row)
    if name == "keys.create: without rights":
        # Admin of anything is enough for that.
        grants = {grant for grant in grants if not grant.startswith("admin:")}
    face = site.face(door, grants)
    there, not_there = outcome_at(face, call, site.exhibit), outcome_at(face, call, missing())
    assert there == not_there
    if door == "command" and row.refused == FORBIDDEN:
        assert there.error in (FORBIDDEN, "queue_not_found", "message_not_found")
    else:
        assert (there.error == FORBIDDEN) == (row.refused == FORBIDDEN)
    assert site.root.stats(site.exhibit.queue) == site.before[0]


def test_nothing_at_all_came_of_what_was_refused(site: Site) -> None:
    """After all of the tests above."""
    assert state_of(site.root, site.exhibit) == site.before


def state_of(root: Client, thing: Thing) -> tuple[object, ...]:
    return (
        root.stats(thing.queue),
        root.explain(thing.leased.id),
        root.config.get(thing.weight),
        root.keys.show(thing.key).grants,
        [intent for intent in root.intents() if intent.intent_id == thing.intent],
        root.audit.read(queue=thing.queue),
    )


@pytest.mark.parametrize(("door", "name"), EVERY_CALL)
def test_a_door_allows_what_the_table_allows(site: Site, door: str, name: str) -> None:
    row, call = TABLE[name], SAID[door][name]
    # What only looks needs nothing of its own.
    thing = site.exhibit if not row.needs else site.thing()
    face = site.face(door, enough(row))
    got = outcome_at(face, call, thing)
    assert got.error == ""
    if row.refused == HIDDEN:
        assert got != outcome_at(site.face(door, STRANGERS), call, site.exhibit)


def test_every_call_of_fila_is_in_the_table() -> None:
    described = {
        method.name
        for module in (service_pb2, admin_pb2, published_service, published_admin)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert described == set(FILA)
    assert {name for name, _ in FILA.values()} <= set(TABLE)
    assert set(COMMANDS) <= set(TABLE)


@pytest.mark.parametrize("right", [None, *Right])
def test_metrics_take_any_right_on_all_queues(site: Site, right: Right | None) -> None:
    for grants, expected in (
        ({f"{right}:*"} if right else set(), 200 if right else 403),
        ({f"{right or 'admin'}:shop/*"}, 403),
    ):
        site.face("fila", grants)
        assert http(site.server, "/metrics", site.secrets[frozenset(grants)])[0] == expected


def test_metrics_do_not_open_without_a_key_and_health_does(site: Site) -> None:
    assert [http(site.server, page, None)[0] for page in ("/metrics", "/healthz", "/readyz", "/")] == [
        401,
        200,
        200,
        200,
    ]


@pytest.mark.parametrize(
    "key", ["throttle.t", "throttle.no-such", "throttle:t:rate", "throttle:no-such:rate", "plain", "no-such"]
)
def test_configuration_that_is_not_of_a_queue_is_refused_alike_in_any_spelling(site: Site, key: str) -> None:
    site.root.config.set("throttle:t:rate", 5)
    face, thing = site.face("fila", STRANGERS), site.exhibit
    asked: list[Callable[[Any, Thing], object]] = [
        lambda x, _: x.ask("GetConfig", admin_pb2.GetConfigRequest(key=key)),
        lambda x, _: x.ask("SetConfig", admin_pb2.SetConfigRequest(key=key, value="1,1")),
        lambda x, _: x.ask("SetConfig", admin_pb2.SetConfigRequest(key=key, value="")),
    ]
    assert [outcome_at(face, call, thing).error for call in asked] == [FORBIDDEN] * 3
    listed = face.ask("ListConfig", admin_pb2.ListConfigRequest(prefix=key[:3]))
    assert (len(listed.entries), listed.total_count) == (0, 0)
    assert site.root.config.get("throttle:t:rate") == "5"


def test_the_command_line_suggests_no_queue_that_one_may_not_see(site: Site) -> None:
    for queue in ("shop/invoices", "store/invoices", "store/invoicing"):
        site.root.create_queue(queue)
    face = site.face("command", STRANGERS)
    said = {}
    for slip in ("store/invoicez", "shop/invoicez", "shop/invoices", "invoices"):
        with pytest.raises(CommandRefused) as refused:
            face.run("stats", slip)
        said[slip] = refused.value
    assert (said["store/invoicez"].error, "store/invoices" in said["store/invoicez"].said) == (
        "queue_not_found",
        True,
    )
    assert "shop/" not in said["store/invoicez"].said
    assert {said[slip].error for slip in said if slip != "store/invoicez"} == {FORBIDDEN}
    assert all("store/" not in said[slip].said for slip in said if slip != "store/invoicez")


def test_every_right_on_everything_is_what_the_first_key_has(site: Site) -> None:
    assert set(site.root.keys.show().grants) == set(map(str, EVERY_RIGHT))


def http(server: ServerProcess, page: str, key: str | None, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{server.addresses['http']}{page}", method=method)
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()
