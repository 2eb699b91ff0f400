"""A relay in front of a door that loses answers: the command is carried out, and instead of its answer the connection
ends.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.client.clients import Listener


class LossyRelay:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listener = Listener(self._bring_commands)
        self._faults: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._swallows = False
        self._refused = 0
        #: Whether servers do not hear that a connection ended.
        self.ends_in_silence = False
        #: What clients sent, piece by piece.
        self.sent: list[bytes] = []

    @property
    def address(self) -> str:
        return self._listener.address

    @property
    def connections(self) -> int:
        return len(self._listener.connections)

    def lose(self, word: bytes, times: int = 1) -> None:
        """The answers to the next commands with this word."""
        self._faults[word] = times

    def refuse(self, times: int) -> None:
        """The next connections are ended before anything is read of them."""
        self._refused = times

    def end_all(self) -> None:
        """As a server does that is restarted."""
        for connection in self._listener.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def swallow(self) -> None:
        """What servers say next is lost, and its connection ends."""
        self._swallows = True

    def _must_lose(self, data: bytes) -> bool:
        with self._lock:
            for word, left in self._faults.items():
                if left and word in data:
                    self._faults[word] = left - 1
                    return True
        return False

    def _bring_commands(self, client: socket.socket) -> None:
        with self._lock:
            self._refused -= 1
            if self._refused >= 0:
                client.close()
                return
        loses = threading.Event()
        with contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            answers = threading.Thread(target=self._bring_answers, args=(server, client, loses), daemon=True)
            answers.start()
            while data := client.recv(1 << 16):
                self.sent.append(data)
                if self._must_lose(data):
                    loses.set()
                server.sendall(data)
            # A thread reads from it, so to close it ends nothing.
            if not self.ends_in_silence:
                server.shutdown(socket.SHUT_RDWR)

    def _bring_answers(self, server: socket.socket, client: socket.socket, loses: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(1 << 16)) and not loses.is_set() and not self._swallows:
                client.sendall(data)
            self._swallows = False
            client.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> LossyRelay:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.__exit__(*error)
