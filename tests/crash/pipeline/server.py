"""`fairlead serve` with a switch in it: every call of a numbered claim or a staged write passes by, and is
written into the ledger.

Settings come from the environment, as `ServerProcess` gives them; the only argument is the directory of
orders and ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from fairlead import Broker
from fairlead.config import ServerSettings
from fairlead.config.load import load_settings
from fairlead.errors import ServerStopping
from fairlead.middleware.stack import Layers
from fairlead.model.handles import read_handle
from fairlead.model.ids import show_id
from fairlead.request import LOCAL, Caller, Request
from fairlead.server import logs
from fairlead.server.doors import Door
from fairlead.server.limits import Limits
from fairlead.server.serve import Server, open_doors, run
from fairlead.verbs.consumers import (
    ConsumersChoose,
    ConsumersClaim,
    ConsumersClose,
    ConsumersRead,
    ConsumersRecord,
)
from fairlead.verbs.staging import StagingPublish, StagingStage

from .ledger import SINK, Ledger, read_tag, sink_tag
from .switch import Switch

LEDGER = "ledger.jsonl"


def main(directory: str) -> None:
    home = Path(directory)
    settings = load_settings(None, os.environ, {})
    logs.set_up(settings.log)
    ledger, switch = Ledger(home / LEDGER), Switch(home)

    def make_doors(broker: Broker, settings: ServerSettings, limits: Limits) -> list[Door]:
        watch(broker, switch, ledger)
        return open_doors(broker, settings, limits, None, Layers(broker, limits=limits), server.event_loop)

    server = Server(settings, make_doors)
    code = 1
    try:
        run(server, ready=lambda: print(json.dumps({"addresses": server.addresses}), flush=True))
        code = 0
    finally:
        os._exit(code)


def watch(broker: Broker, switch: Switch, ledger: Ledger) -> None:
    """From now on every request to this broker, whatever way it came, passes by the switch."""
    do, watched = broker.do, Watched(broker, switch, ledger)
    own: dict[type[Any], Callable[..., Any]] = {
        ConsumersClaim: watched.claim,
        ConsumersRead: watched.read_pages,
        ConsumersRecord: watched.record,
        ConsumersChoose: watched.choose,
        ConsumersClose: watched.close,
        StagingStage: watched.stage,
        StagingPublish: watched.publish,
    }

    for kind in own:
        # In a turn of the RESP door a verb ends before its write: what the ledger calls done must be written.
        kind.slow = True

    def do_watched(request: Request[Any], caller: Caller = LOCAL, *, gathered: bool = False) -> Any:
        kind = type(request)
        if kind not in own:
            return do(request, caller, gathered=gathered)
        return own[kind](
            lambda *args, **options: do(kind(*args, **options), caller, gathered=gathered),
            **msgspec.structs.asdict(request),
        )

    broker.do = do_watched  # type: ignore[method-assign]


class Watched:
    """The verbs, each given the broker's own to carry it out."""

    def __init__(self, broker: Broker, switch: Switch, ledger: Ledger) -> None:
        self._broker = broker
        self._do = broker.do
        self._switch = switch
        self._ledger = ledger

    def claim(
        self, act: Callable[..., Any], name: str, queue: str, generation: int, number: int, **options: Any
    ) -> Any:
        def members(answer: Any) -> dict[str, Any]:
            if not answer.count:
                return {"number": number, "members": []}
            pages = self._do(ConsumersRead(name, queue, generation, number))
            deliveries = chain.from_iterable(pages)
            return {
                "number": number,
                "members": [[d.id, read_tag(d.payload), d.attempts] for d in deliveries],
            }

        return self._pass(
            "claim",
            lambda: act(name, queue, generation, number, **options),
            members,
            number=number,
            generation=generation,
        )

    def read_pages(
        self,
        act: Callable[..., Any],
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        **options: Any,
    ) -> Iterator[Any]:
        # One that goes on behind what a broken connection brought is no reading of the whole slice.
        told = {"number": number, "slice": slice, "slices": slices} | (
            {"rest": True} if options.get("after") else {}
        )
        op, nth = self._begin("read", told)
        tags = list[str]()
        try:
            for page in act(name, queue, generation, number, slice=slice, slices=slices, **options):
                tags += [read_tag(delivery.payload) for delivery in page]
                yield page
        except BaseException as error:
            self._ledger.refused(op, "read", error)
            raise
        self._end("read", op, nth, told | {"tags": tags})

    def record(
        self,
        act: Callable[..., Any],
        name: str,
        queue: str,
        generation: int,
        number: int,
        items: Any,
        *,
        part: str = "",
        **options: Any,
    ) -> Any:
        told = {
            "number": number,
            "part": part,
            "items": [
                [type(item).__name__.lower(), show_id(read_handle(item.delivery)[0])] for item in items
            ],
        }
        return self._pass(
            "record",
            lambda: act(name, queue, generation, number, items, part=part, **options),
            lambda _: told,
            number=number,
        )

    def choose(
        self,
        act: Callable[..., Any],
        name: str,
        queue: str,
        generation: int,
        number: int,
        parts: Any,
        *,
        add: bool = False,
    ) -> Any:
        told = {"number": number, "parts": list(parts), "add": add}
        return self._pass(
            "choose",
            lambda: act(name, queue, generation, number, parts, add=add),
            lambda _: told,
            number=number,
        )

    def close(self, act: Callable[..., Any], name: str, queue: str, generation: int, up_to: int) -> Any:
        visible = [sink_tag(info.payload) for info in self._broker.peek(SINK, limit=10_000)]
        told = {"up_to": up_to, "visible": visible}
        return self._pass(
            "close",
            lambda: act(name, queue, generation, up_to),
            lambda done: {"up_to": up_to, "settled": done.settled},
            **told,
        )

    def stage(
        self, act: Callable[..., Any], token: str, chunk: str, queue: str, messages: Any, **options: Any
    ) -> Any:
        tags = [sink_tag(message.payload) for message in messages]
        told = {"token": token, "chunk": chunk, "tags": tags}
        return self._pass(
            "stage",
            lambda: act(token, chunk, queue, messages, **options),
            lambda done: {"count": done.count},
            **told,
        )

    def publish(self, act: Callable[..., Any], token: str, queue: str, chunks: Any) -> Any:
        told = {"token": token, "chunks": list(chunks)}
        return self._pass(
            "publish",
            lambda: act(token, queue, chunks),
            lambda done: {"outcome": done.outcome, "count": done.count},
            **told,
        )

    def _pass(
        self, event: str, act: Callable[[], Any], tell: Callable[[Any], dict[str, Any]], **told: Any
    ) -> Any:
        op, nth = self._begin(event, told)
        try:
            answer = act()
            done = tell(answer)
        except BaseException as error:
            self._ledger.refused(op, event, error)
            raise
        self._end(event, op, nth, done)
        return answer

    def _begin(self, event: str, told: dict[str, Any]) -> tuple[str, int]:
        nth = self._switch.count(event)
        op = self._ledger.begin(event, nth=nth, **told)
        if (window := self._switch.pass_by(event, "before", nth)) is not None:
            self._ledger.write(ev="killed", do="kill", window=str(window))
            raise ServerStopping()
        return op, nth

    def _end(self, event: str, op: str, nth: int, done: dict[str, Any]) -> None:
        self._ledger.done(op, event, **done)
        if (window := self._switch.pass_by(event, "after", nth)) is not None:
            self._ledger.write(ev="killed", do="kill", window=str(window))
