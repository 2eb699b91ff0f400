"""The process around a broker and its doors: start, wait, and stop in the order that loses nothing.

A stop accepts no more work, ends all waits, lets calls in flight finish, closes the doors and then the
broker. Leases stay.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import fairlead
from fairlead.config import ServerSettings
from fairlead.config.server import BOOTSTRAP_KEY_VARIABLE
from fairlead.decide.redact import Redaction
from fairlead.engine.broker import Broker
from fairlead.errors import AddressUnavailable, BrokenInvariant, FairleadError
from fairlead.middleware.stack import Layers
from fairlead.model.addresses import split_address
from fairlead.server.arrow_memory import limit_arrow_memory
from fairlead.server.bootstrap import BOOTSTRAP_FILE, BootstrapOutcome, prepare_bootstrap_key
from fairlead.server.collector import spare_what_is_there
from fairlead.server.doors import Door
from fairlead.server.event_loop import EventLoop
from fairlead.server.limits import Limit, Limits
from fairlead.server.logs import event, safe_text
from fairlead.server.ports import try_port
from fairlead.server.sockets import SocketWatch, raise_descriptor_limit
from fairlead.store.modes import readable_by_others
from fairlead.wire import tracing

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

#: How often the server checks that the broker still works: a failed sync stops it, and a supervisor should
#: start it again.
HEALTH_CHECK_S = 0.5
#: How long a thread keeps the interpreter lock while others wait for it.
SWITCH_INTERVAL_S = 0.0001
#: How long closing a door may take once no call is in flight.
CLOSING_S = 3.0

_log = logging.getLogger("fairlead.serve")

#: Doors in the order in which they open and close: health is last both times, so it reports ready when the
#: others are, and can be watched to the end.
MakeDoors = Callable[[Broker, ServerSettings, Limits], list[Door]]


class Server:
    """A broker with open doors. `start`, then `wait`, then `stop`; a failed `start` leaves nothing behind.

    `open_data` is the first part of `start`, for a caller that treats signals differently in it.
    """

    def __init__(
        self,
        settings: ServerSettings,
        make_doors: MakeDoors | None = None,
        *,
        bootstrap_key: str | None = None,
    ) -> None:
        self.settings = settings
        self._bootstrap_key = bootstrap_key
        self.limits = Limits(settings.limits)
        self.doors: list[Door] = []
        #: For all asyncio doors; the first of them starts it.
        self.event_loop = EventLoop()
        #: The certificates of the doors, with `tls.cert`. Watched from `start` on.
        self.certificates: Certificates | None = None
        self._make_doors = make_doors or (
            lambda broker, settings, limits: open_doors(
                broker, settings, limits, self.certificates, self._layers(broker), self.event_loop
            )
        )
        self._broker: Broker | None = None
        self._tracing: tracing.Tracing | None = None
        self._sockets: SocketWatch | None = None
        self._told = threading.Event()
        self._told_to_look = False
        self._hurry = threading.Event()
        self._woken, self.wakes = socket.socketpair()
        self.wakes.setblocking(False)

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses with the real ports, in the order of the settings."""
        found = {door.name: door.address for door in self.doors}
        return {name: found[name] for name in self.settings.addresses() if name in found}

    def open_data(self) -> None:
        """Check certificates and addresses, then open the data directory, which may take long."""
        raise_descriptor_limit()
        if self.settings.tls.on:
            from fairlead.server.certificates import Certificates

            self.certificates = Certificates(self.settings.tls)
        for name, address in self.settings.addresses().items():
            _check_free(name, address)
        self._broker = fairlead.open(
            self.settings.data, durability=self.settings.durability, settings=self.settings.engine()
        )

    def start(self) -> None:
        if self._broker is None:
            self.open_data()
        broker = self._broker
        assert broker is not None
        try:
            if (open_to_others := readable_by_others(self.settings.data)) is not None:
                event(
                    _log,
                    logging.WARNING,
                    "others on this machine can read messages; chmod 700 the data directory",
                    file=open_to_others,
                )
            if self.settings.tracing.otlp_endpoint:
                self._tracing = tracing.setup(
                    self.settings.tracing.otlp_endpoint, self.settings.tracing.service_name
                )
            if self.settings.auth.mode == "keys":
                self._prepare_bootstrap_key(broker)
            for door in self._make_doors(broker, self.settings, self.limits):
                try:
                    door.start()
                except FairleadError:
                    raise
                except Exception as error:
                    raise AddressUnavailable(door.name, door.address, str(error)) from error
                self.doors.append(door)
        except BaseException:
            self.limits.close()
            self._close(time.monotonic())
            self._broker = None
            raise
        if self.certificates is not None:
            self.certificates.start()
        self._sockets = SocketWatch(
            self.limits,
            {name: split_address(address)[1] for name, address in self.addresses.items() if name != "http"},
        )
        self._sockets.start()
        where = {**self.addresses, **self._tls_fields()}
        event(
            _log,
            logging.INFO,
            "serving",
            data=self.settings.data,
            durability=self.settings.durability,
            pid=os.getpid(),
            **where,
        )

    def _layers(self, broker: Broker) -> Layers:
        return Layers(
            broker,
            Redaction(self.settings.redact.headers, self.settings.redact.json_paths),
            keys=self.settings.auth.mode == "keys",
            limits=self.limits,
            tracing=self._tracing,
            on_refused=lambda: self.limits.refused(Limit.AUTHENTICATION),
        )

    def _prepare_bootstrap_key(self, broker: Broker) -> None:
        file = Path(self.settings.auth.bootstrap_key_file or self.settings.data / BOOTSTRAP_FILE)
        given, self._bootstrap_key = self._bootstrap_key, None
        prepared = prepare_bootstrap_key(broker, file, given)
        if prepared is BootstrapOutcome.MADE:
            event(
                _log,
                logging.WARNING,
                "a first API key with every right was made; keep it safe, or replace it",
                file=file,
            )
        if prepared is BootstrapOutcome.REVOKED and given is None:
            event(
                _log,
                logging.WARNING,
                "the bootstrap key in the file was revoked or rotated and is not taken; remove the file",
                file=file,
            )
        if prepared is BootstrapOutcome.REVOKED and given is not None:
            event(
                _log,
                logging.WARNING,
                "the bootstrap key in the environment was revoked or rotated and is not taken; unset the variable",
                variable=BOOTSTRAP_KEY_VARIABLE,
            )
        if given is not None and file.exists():
            event(
                _log,
                logging.WARNING,
                "the bootstrap key comes from the environment; remove the file, or its key is taken once the"
                " variable is gone",
                file=file,
            )

    def _tls_fields(self) -> dict[str, str]:
        if self.certificates is None:
            return {}
        kind = "mutual" if self.settings.tls.client_ca else "on"
        return {"tls": kind, "certificate_ends": f"{self.certificates.current.ends:%Y-%m-%d}"}

    def wait(self) -> None:
        """Wait until `tell_to_stop`. Raises the error that stopped the broker, if it stopped by itself."""
        assert self._broker is not None
        while not self._told.is_set():
            self._broker.intents()
            if select.select([self._woken], [], [], HEALTH_CHECK_S)[0]:
                # Other signals wake this thread too, and must not do so again and again.
                self._woken.recv(4096)
            if self._told_to_look:
                self._told_to_look = False
                if self.certificates is not None:
                    self.certificates.look_now()

    def tell_to_stop(self) -> None:
        """Safe in a signal handler. The second call stops waiting for calls in flight."""
        if self._told.is_set():
            self._hurry.set()
        self._told.set()
        with suppress(BlockingIOError):
            self.wakes.send(b"!")

    def tell_to_look(self) -> None:
        """Safe in a signal handler. Read changed certificates again."""
        self._told_to_look = True
        with suppress(BlockingIOError):
            self.wakes.send(b"!")

    def stop(self) -> None:
        """Everything confirmed is durable when this returns, whatever happened to the doors."""
        assert self._broker is not None
        event(
            _log,
            logging.INFO,
            "stopping",
            calls_in_flight=self.limits.in_flight,
            grace_ms=self.settings.limits.drain_grace_ms,
        )
        deadline = time.monotonic() + self.settings.limits.drain_grace_ms / 1000
        for door in self.doors:
            door.drain()
        self.limits.close()
        self._broker.interrupt_waits()
        if not self.limits.wait_until_idle(self.settings.limits.drain_grace_ms, self._hurry.is_set):
            event(
                _log,
                logging.WARNING,
                "calls are cut off",
                calls_in_flight=self.limits.in_flight,
                hurried=self._hurry.is_set(),
            )
        self._close(deadline)
        event(_log, logging.INFO, "stopped")

    def _close(self, deadline: float) -> None:
        """Messages that streams of the gRPC door have claimed ahead return within the rest of the grace
        period.
        """
        if self.certificates is not None:
            self.certificates.stop()
        if self._sockets is not None:
            self._sockets.stop()
        for door in self.doors:
            _stop_door(door, max(deadline, time.monotonic()) + CLOSING_S, self._hurry)
        assert self._broker is not None
        self._broker.close()
        # After the broker: a loop that hangs must not keep it from being closed.
        self.event_loop.stop()
        if self._tracing is not None:
            self._tracing.close()


def run(server: Server, ready: Callable[[], None]) -> None:
    """The life of a server process: start, call `ready`, serve until SIGTERM or SIGINT, stop.

    SIGHUP makes it check its certificates; if it comes because a terminal closed, it stops the server. While
    the data directory is opened, SIGTERM and SIGINT end the process at once, because a kill at that time
    loses nothing. Raises the error that kept it from starting, or that stopped its broker; by then the doors
    are closed.
    """

    def told(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and not at_terminal:
            server.tell_to_look()
        else:
            server.tell_to_stop()

    # A thread that needs the interpreter lock asks for it after this time. With the default of 5 ms, one busy
    # thread beside the event loop, such as a large answer of another door, made the median of small calls 6.1
    # ms, with this value 0.8 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    stopping = (signal.SIGTERM, signal.SIGINT)
    # Python would run its own handler only after RocksDB has opened the directory.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in stopping}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, told)
    # The system may deliver a signal to a thread of a library; without this the main thread would continue to
    # sleep.
    awake_before = signal.set_wakeup_fd(server.wakes.fileno(), warn_on_full_buffer=False)
    try:
        server.open_data()
        for number in stopping:
            signal.signal(number, told)
        server.start()
        spare_what_is_there()
        try:
            ready()
            notify("READY=1")
            server.wait()
        except BrokenInvariant as error:
            event(_log, logging.CRITICAL, "the broker has stopped by itself", error=safe_text(error))
            raise
        finally:
            notify("STOPPING=1")
            server.stop()
    finally:
        signal.set_wakeup_fd(awake_before)
        for number, handler in before.items():
            signal.signal(number, handler)


def open_doors(
    broker: Broker,
    settings: ServerSettings,
    limits: Limits,
    certificates: Certificates | None,
    layers: Layers,
    event_loop: EventLoop,
) -> list[Door]:
    """The doors that are not off. Each imports its own library, which need not be installed for the others."""
    addresses, doors = settings.addresses(), list[Door]()
    if "resp" in addresses:
        from fairlead.server.resp.door import RespDoor

        doors.append(
            RespDoor(
                broker,
                addresses["resp"],
                limits,
                certificates=certificates,
                layers=layers,
                event_loop=event_loop,
                socket_path=settings.resp_socket,
                asks_for_keys=settings.auth.mode == "keys",
                flight_address=lambda: _address_of("flight", doors),
            )
        )
    if "flight" in addresses:
        limit_arrow_memory(settings.limits.max_arrow_bytes)
        from fairlead.server.flight import FlightDoor

        doors.append(
            FlightDoor(broker, addresses["flight"], limits, certificates=certificates, layers=layers)
        )
    if "grpc" in addresses:
        from fairlead.server.fila.door import FilaDoor

        grace_s, carries_traces = settings.limits.drain_grace_ms / 1000, bool(settings.tracing.otlp_endpoint)
        doors.append(
            FilaDoor(
                broker,
                addresses["grpc"],
                limits,
                grace_s=grace_s,
                trace_headers=carries_traces,
                certificates=certificates,
                layers=layers,
            )
        )
    if "http" in addresses:
        from fairlead.server.http import HttpDoor
        from fairlead.server.metrics import Metrics

        ends = None if certificates is None else lambda: certificates.current.ends
        metrics = Metrics(
            broker,
            data=settings.data,
            limits=limits,
            settings=settings.metrics,
            certificate_ends=ends,
            requests=layers.requests,
        )
        doors.append(
            HttpDoor(
                broker,
                addresses["http"],
                metrics,
                event_loop,
                certificates=certificates,
                layers=layers,
                limits=limits,
            )
        )
    return doors


def _address_of(name: str, doors: list[Door]) -> str:
    """ "" for a door that is off."""
    return next((door.address for door in doors if door.name == name), "")


def _check_free(door: str, address: str) -> None:
    try:
        try_port(*split_address(address, may_pick_port=True))
    except OSError as error:
        raise AddressUnavailable(door, address, error.strerror or str(error)) from error


def _stop_door(door: Door, deadline: float, hurry: threading.Event) -> None:
    """The wait is bounded: a library that hangs must not keep the broker from being closed."""
    done = threading.Event()

    def stop() -> None:
        try:
            door.stop()
        except Exception:
            _log.exception("a door did not stop cleanly", extra={"fields": {"door": door.name}})
        finally:
            done.set()

    threading.Thread(target=stop, name=f"fairlead-stop-{door.name}", daemon=True).start()
    while not done.wait(0.1):
        if time.monotonic() > deadline or hurry.is_set():
            event(_log, logging.WARNING, "a door is left behind", door=door.name)
            return


def notify(state: str) -> None:
    """Notify systemd, if the process runs under it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as channel:
        try:
            channel.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            event(_log, logging.WARNING, "systemd was not told", state=state, error=safe_text(error))
