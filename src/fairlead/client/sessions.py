"""Sessions of a client: each request gets a number, so that it takes effect once, however often it is sent."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from fairlead.errors import SessionExpired, StoreFull
from fairlead.verbs.sessions import OpenSession
from fairlead.wire.numbered import Numbered
from fairlead.wire.records import encode_request

if TYPE_CHECKING:
    from fairlead.client.core import Asked, Core


class _NoRoom(Exception):
    """The disk of the server has no room for another session."""


class _Session:
    """Has one request under way at a time. The next one says that all before it were answered, or given up."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0

    def next(self) -> Numbered:
        self.number += 1
        return Numbered(session=self.name, number=self.number, arrived=self.number - 1)


class Sessions:
    """As many as requests were ever under way together. So a request that hangs keeps no other from being forgotten by
    the server. Thread-safe.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._idle: list[_Session] = []

    def ask(
        self,
        verb: str,
        metadata: Callable[[Numbered], bytes],
        batch: pa.RecordBatch | None,
        *,
        ends_ms: int | None = None,
    ) -> Asked:
        """`metadata` gets the number of the request. On a disk with no room for a session it gets none, so that what
        frees space goes on; such a request is not repeated after a lost answer.
        """
        ends_ms = self._core.deadline_ms() if ends_ms is None else ends_ms
        with self._lock:
            session = self._idle.pop() if self._idle else None
        try:
            if session is None:
                session = self._open(ends_ms)
            else:
                try:
                    return self._ask(session, verb, metadata, batch, ends_ms)
                except SessionExpired:
                    # Of the only copy that was sent: nothing was carried out.
                    session = self._open(ends_ms)
            return self._ask(session, verb, metadata, batch, ends_ms)
        except _NoRoom:
            return self._core.ask(verb, metadata(Numbered()), batch, ends_ms=ends_ms, repeat="never")
        finally:
            if session is not None:
                with self._lock:
                    self._idle.append(session)

    def _ask(
        self,
        session: _Session,
        verb: str,
        metadata: Callable[[Numbered], bytes],
        batch: pa.RecordBatch | None,
        ends_ms: int,
    ) -> Asked:
        return self._core.ask(verb, metadata(session.next()), batch, ends_ms=ends_ms, repeat="by number")

    def _open(self, ends_ms: int) -> _Session:
        name = secrets.token_hex(12)
        try:
            self._core.ask("request", encode_request(OpenSession(name)), name="open_session", ends_ms=ends_ms)
        except StoreFull:
            raise _NoRoom from None
        return _Session(name)
