"""Answers of many batches, read to their end whatever happens on the way: after trouble the rest is asked for, not all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from fairlead.client.channel import Channel, ConnectionBroken
from fairlead.client.core import Core, read_answer
from fairlead.client.patience import Patience
from fairlead.errors import BrokerClosed, Overloaded, ProtocolMismatch, ServerStopping
from fairlead.wire.calls import Answer
from fairlead.wire.faults import error_of

Piece = tuple[Answer, pa.RecordBatch]


def ask_for_batches(core: Core, verb: str, rest: Callable[[], bytes]) -> Iterator[Piece]:
    """`rest` asks for what has not been given out yet, and is called again after each trouble that may pass.

    The time allowed for trouble counts anew from every batch that came. Left early, it lets go of its channel.
    """
    patience: Patience | None = None
    while True:
        core.check()
        at_least_ms = 0
        try:
            for piece in _pieces(core, verb, rest()):
                patience = None
                core.outage.over()
                yield piece
            return
        except ConnectionBroken as broken:
            trouble: Exception = broken
        except (ServerStopping, BrokerClosed) as stopping:
            core.let_go()
            trouble = stopping
        except Overloaded as overloaded:
            trouble = overloaded
            at_least_ms = int(overloaded.retry_after_ms)
        core.check()
        core.outage.met(trouble)
        patience = patience or core.patience()
        if not patience.wait(at_least_ms):
            core.give_up(trouble)


def _pieces(core: Core, verb: str, metadata: bytes) -> Iterator[Piece]:
    channel = core.take_channel(verb)
    whole = False
    try:
        channel.expect(core.options.timeout_ms)
        channel.send(metadata, None)
        while True:
            answer, body = _receive(core, channel)
            if answer.error is not None:
                whole = True
                raise error_of(answer.error)
            if body is not None and body.num_rows:
                yield answer, body
            if answer.done:
                whole = True
                return
    except ConnectionBroken:
        core.broke(channel)
        raise
    finally:
        # What is still on its way would be taken for the answer to the next request.
        if whole:
            core.give_back(verb, channel)
        else:
            channel.close()


def _receive(core: Core, channel: Channel) -> tuple[Answer, pa.RecordBatch | None]:
    channel.expect(core.options.timeout_ms)
    raw, body = channel.receive()
    try:
        return read_answer(raw), body
    except ProtocolMismatch:
        channel.close()
        raise
