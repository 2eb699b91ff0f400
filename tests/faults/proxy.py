"""A network that can go away without a word: TCP passed on between a client and a server, until it is told to
stop.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType


class Proxy:
    """Listens on a port of its own, and connects each client to `upstream`.

    `freeze` holds what is on its way over the connections of that moment: no end of stream, no reset, as when
    a cable is pulled. Connections made afterwards pass, as over another road. `answers_take_s` is how far
    away the server is.
    """

    def __init__(self, upstream: str, *, answers_take_s: float = 0.0) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._answers_take_s = answers_take_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many there have been."""
        return len(self._links)

    def freeze(self, *, requests: bool = True, answers: bool = True) -> None:
        for link in self._copy():
            if requests:
                link.requests.clear()
            if answers:
                link.answers.clear()

    def thaw(self) -> None:
        """What was held arrives after all."""
        for link in self._copy():
            link.requests.set()
            link.answers.set()

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shut down first: closing alone does not wake a thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._copy():
            link.cut()

    def _copy(self) -> list[_Link]:
        with self._lock:
            return list(self._links)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._upstream)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._links.append(_Link(near, far, self._answers_take_s))


class _Link:
    """One connection in two halves. `requests` and `answers` are set while that direction passes."""

    def __init__(self, near: socket.socket, far: socket.socket, answers_take_s: float) -> None:
        self._ends = (near, far)
        self.requests, self.answers = threading.Event(), threading.Event()
        for passing, source, sink, takes_s in (
            (self.requests, near, far, 0.0),
            (self.answers, far, near, answers_take_s),
        ):
            passing.set()
            threading.Thread(target=self._pass_on, args=(passing, source, sink, takes_s), daemon=True).start()

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.requests.set()
        self.answers.set()

    def _pass_on(
        self, passing: threading.Event, source: socket.socket, sink: socket.socket, takes_s: float
    ) -> None:
        try:
            while data := source.recv(65536):
                time.sleep(takes_s)
                passing.wait()
                sink.sendall(data)
            passing.wait()
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            if passing.is_set():
                self.cut()
