"""One broker with every face open, shared by all tests of a process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead import Broker, DeliveryRef, verify
from fairlead.middleware.stack import Layers
from fairlead.model.access import AuditRecord, NewKey
from fairlead.model.ids import IdSource, show_id
from fairlead.server.fila.door import FilaDoor
from fairlead.server.flight import FlightDoor
from fairlead.server.resp.door import RespDoor
from tests.faces.doors import (
    AioFace,
    ClientFace,
    CommandFace,
    DoFace,
    FilaFace,
    InProcessFace,
    RespFace,
    WordsFace,
)
from tests.faces.table import Thing, furnish

_numbers = itertools.count(1)
_ids = IdSource()


@dataclass
class Site:
    """A broker that asks for keys, its doors, and callers by the rights they have."""

    path: Path
    broker: Broker
    #: Makes a face of a kind from the secret of a key.
    connect: dict[str, Callable[[str], Any]]
    #: Never changed, because nobody who is refused may change it.
    exhibit: Thing
    keys: dict[frozenset[str], NewKey] = field(default_factory=dict)
    faces: dict[tuple[str, frozenset[str]], Any] = field(default_factory=dict)

    def key(self, grants: set[str]) -> NewKey:
        """Keys and connections are made once for each set of grants."""
        wanted = frozenset(grants)
        if wanted not in self.keys:
            self.keys[wanted] = self.broker.keys.create("a caller", sorted(grants))
        return self.keys[wanted]

    def face(self, kind: str, grants: set[str]) -> Any:
        wanted = kind, frozenset(grants)
        if wanted not in self.faces:
            self.faces[wanted] = self.connect[kind](self.key(grants).secret)
        return self.faces[wanted]

    def thing(self) -> Thing:
        number = f"{next(_numbers):06}"
        return furnish(
            self.broker, f"shop/own.{number}", str(self.path / f"copy-{number}"), f"token-{number}"
        )

    def missing(self) -> Thing:
        """Like a thing in every respect, but that it is not there."""
        number = next(_numbers)
        ready, held, dead, leased = (show_id(raw_id) for raw_id in _ids.next(1_800_000_000_000, 4))
        return Thing(
            f"shop/own.{number:06}x",
            ready,
            held,
            dead,
            DeliveryRef(leased, "1000fffff"),
            900_000 + number,
            f"{number:a>12}",
            str(self.path / f"none-{number:06}"),
            f"token-{number:06}",
        )

    def state(self) -> tuple[object, ...]:
        """What a call that should have been refused could have changed of the exhibit."""
        thing, broker = self.exhibit, self.broker
        return (
            broker.stats(thing.queue),
            broker.stats(thing.queue + ".dlq"),
            broker.explain(thing.leased.id),
            broker.consumers.show(thing.consumer, thing.queue),
            [write for write in broker.staging.list() if write.token in (thing.write, thing.burial)],
            broker.config.get(thing.weight),
            broker.config.get(thing.note),
            broker.keys.show(thing.key).grants,
            [intent for intent in broker.intents() if intent.intent_id == thing.intent],
            [info for info in broker.queues() if info.name.startswith(thing.queue)],
            broker.runbooks.get(thing.project),
        )

    @contextmanager
    def new_entries(self) -> Iterator[list[AuditRecord]]:
        """Entries of the audit that are written in the block, oldest first."""
        last = next((entry.number for entry in self.broker.audit.read(limit=1)), 0)
        entries: list[AuditRecord] = []
        yield entries
        entries += [entry for entry in self.broker.audit.read(limit=100) if entry.number > last][::-1]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("faces")
    with ExitStack() as stack:
        broker = stack.enter_context(fairlead.open(path / "data", durability="os"))
        layers = Layers(broker, keys=True)
        flight = FlightDoor(broker, "127.0.0.1:0", layers=layers)
        fila = FilaDoor(broker, "127.0.0.1:0", layers=layers)
        resp = RespDoor(
            broker, "127.0.0.1:0", layers=layers, asks_for_keys=True, flight_address=lambda: flight.address
        )
        for door in (flight, fila, resp):
            door.start()
            stack.callback(door.stop)
            stack.callback(door.drain)
        stack.callback(broker.interrupt_waits)
        made = Site(
            path,
            broker,
            {
                "in process": lambda secret: InProcessFace(layers.admit(f"Bearer {secret}", "in process")),
                "fila": lambda secret: FilaFace(fila.address, secret),
                "command": lambda secret: CommandFace(resp.address, secret),
                "resp": lambda secret: RespFace(resp.address, secret),
                "words": lambda secret: WordsFace(resp.address, secret),
                "client": lambda secret: ClientFace(resp.address, secret),
                "asyncio": lambda secret: AioFace(resp.address, secret),
                "do": lambda secret: DoFace(resp.address, secret),
            },
            furnish(broker, "shop/own.exhibit", str(path / "copy-exhibit"), "token-exhibit"),
        )
        yield made
        for face in made.faces.values():
            face.close()
    assert verify(path / "data").problems == []
