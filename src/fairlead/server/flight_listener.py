"""A Flight server on one port, replaced by another when the certificates change, because pyarrow's server
cannot change them.

A server that shuts down closes its port at once and continues with its open streams; its clients use a new
connection for new ones. So nothing is cut off. Between the two, nothing listens for some milliseconds; a
client tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.model.addresses import join_address, split_address
from fairlead.server.logs import event
from fairlead.server.ports import try_port

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates, Material

_log = logging.getLogger("fairlead.flight")

#: How long to wait for the port after the previous server was told to release it, before this is reported and
#: the old certificates are tried as well.
_PORT_S = 5.0


class ArrowServer(Protocol):
    """The part of pyarrow's `FlightServerBase` that is needed here: made, it serves."""

    port: int

    def shutdown(self) -> None: ...


#: Takes a location, and the arguments that make it speak TLS.
Make = Callable[..., ArrowServer]


class FlightListener:
    def __init__(self, make: Make, address: str, certificates: Certificates | None) -> None:
        self._make = make
        self._host, self._port = split_address(address, may_pick_port=True)
        self._certificates = certificates
        self._lock = threading.Lock()
        self._server: ArrowServer | None = None
        self._shown: Material | None = None
        self._stopping = threading.Event()
        self._leaving: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return join_address(self._host, self._port)

    def start(self) -> None:
        self._shown = self._certificates.current if self._certificates else None
        self._server = self._open(self._shown)
        self._port = self._server.port
        if self._certificates is not None:
            self._certificates.tell_changes(self.renew)

    def renew(self) -> None:
        """Change to the current certificates. Returns when the port is open again, or the listener was
        stopped.

        If Flight cannot use the new certificates, the listener keeps the old ones: an open port with them is
        better than none.
        """
        assert self._certificates is not None
        with self._lock:
            if self._server is None or self._stopping.is_set():
                return
            began = time.monotonic()
            self._leave(self._server)
            self._server = None
            late = False
            while not self._stopping.is_set() and not self._opened_with(self._certificates.current):
                if late and self._opened_with(self._shown):
                    event(
                        _log,
                        logging.ERROR,
                        "new certificates cannot be used by Flight, which shows the old ones",
                        address=self.address,
                    )
                    return
                if not late and time.monotonic() - began > _PORT_S:
                    late = True
                    event(
                        _log,
                        logging.ERROR,
                        "the port could not be opened again after a change of certificates, trying on",
                        address=self.address,
                    )
                self._stopping.wait(0.002 if not late else 1.0)
            event(_log, logging.DEBUG, "listening again", gap_ms=round((time.monotonic() - began) * 1000))

    def stop(self, grace_s: float) -> None:
        """Flight waits for every open stream, and a client that vanished keeps its own open, so the wait is
        bounded.
        """
        self._stopping.set()
        with self._lock:
            if self._server is not None:
                self._leave(self._server)
                self._server = None
            leaving = list(self._leaving)
        deadline = time.monotonic() + grace_s
        for thread in leaving:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _leave(self, server: ArrowServer) -> None:
        thread = threading.Thread(target=server.shutdown, name="flight-shutdown", daemon=True)
        thread.start()
        self._leaving = [*(one for one in self._leaving if one.is_alive()), thread]

    def _opened_with(self, material: Material | None) -> bool:
        if not self._is_free():
            return False
        try:
            self._server = self._open(material)
        except Exception as refused:
            _log.debug("the port is not open again yet: %s", refused)
            return False
        self._shown = material
        return True

    def _open(self, material: Material | None) -> ArrowServer:
        where = join_address(self._host, self._port)
        if material is None:
            return self._make(f"grpc://{where}")
        tls: dict[str, Any] = {"tls_certificates": [(material.cert, material.key)]}
        if material.client_ca is not None:
            tls |= {"verify_client": True, "root_certificates": material.client_ca}
        return self._make(f"grpc+tls://{where}", **tls)

    def _is_free(self) -> bool:
        """Checked first, because gRPC prints to stderr what it could not have."""
        try:
            try_port(self._host, self._port)
        except OSError:
            return False
        return True
