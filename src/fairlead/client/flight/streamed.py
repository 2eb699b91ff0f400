"""Answers of many batches, read to the end despite failures: after a failure only the rest is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from fairlead.client.flight.channel import Channel
from fairlead.client.flight.core import TROUBLES, FlightCore, read_answer
from fairlead.client.outage import ConnectionBroken
from fairlead.client.patience import Patience
from fairlead.errors import ProtocolMismatch
from fairlead.wire.calls import Answer
from fairlead.wire.faults import error_of

Piece = tuple[Answer, pa.RecordBatch]


def ask_for_batches(core: FlightCore, verb: str, rest: Callable[[], bytes]) -> Iterator[Piece]:
    """The batches of an answer. `rest` returns the request for the batches that were not yielded yet, and is
    called again after each failure that may pass.

    Each batch has its own deadline, which begins when the caller asks for the batch. If the caller stops
    early, the channel is closed.
    """
    pace = _Pace(core)
    while True:
        core.check()
        try:
            for piece in _pieces(core, verb, rest(), pace):
                core.outage.over()
                yield piece
                pace.renew()
            return
        except TROUBLES as trouble:
            core.wait_after(trouble, pace.patience)


class _Pace:
    """The time limit of the next batch."""

    def __init__(self, core: FlightCore) -> None:
        self._core = core
        self.patience: Patience = core.patience()

    def renew(self) -> None:
        self.patience = self._core.patience()

    def within_ms(self) -> int:
        return min(self._core.options.timeout_ms, self.patience.left_ms())


def _pieces(core: FlightCore, verb: str, metadata: bytes, pace: _Pace) -> Iterator[Piece]:
    channel = core.take_channel(verb, pace.within_ms())
    whole = False
    try:
        channel.expect(pace.within_ms())
        channel.send(metadata, None)
        while True:
            channel.expect(pace.within_ms())
            answer, body = _receive(channel)
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
        # The rest of the answer would be taken for the answer to the next request.
        if whole:
            core.give_back(verb, channel)
        else:
            channel.close()


def _receive(channel: Channel) -> tuple[Answer, pa.RecordBatch | None]:
    raw, body = channel.receive()
    try:
        return read_answer(raw), body
    except ProtocolMismatch:
        channel.close()
        raise
