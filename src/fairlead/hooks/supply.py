"""Starts host processes ahead of need: one is ready beside the one at work."""

from __future__ import annotations

import logging
import threading

from fairlead.hooks.process import HostDied, HostDoesNotStart, HostProcess
from fairlead.hooks.wire import HostSetup

_log = logging.getLogger("fairlead.hooks")
_SPARES = 1
#: A first attempt may fail because somebody else killed the host.
_START_ATTEMPTS = 2


class HostSupply:
    """Hosts that are ready to work. Nothing is started before the first `take`.

    One thread starts all hosts and lives as long as the supply: on Linux a host dies with the thread that
    started it, and the threads that call hooks come and go.
    """

    def __init__(self, setup: HostSetup, kill_after_ms: int) -> None:
        self._setup = setup
        self._kill_after_ms = kill_after_ms
        self._changed = threading.Condition()
        self._ready: list[HostProcess] = []
        self._starting: HostProcess | None = None
        self._problem: HostDoesNotStart | None = None
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._logged = False

    def take(self) -> HostProcess:
        """A ready host, which the caller now owns. Raises `HostDoesNotStart`; the next call tries again."""
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._keep_ready, name="fairlead-hook-supply", daemon=True
                )
                self._thread.start()
            self._problem = None
            self._waiting += 1
            self._changed.notify_all()
            try:
                while True:
                    host = self._await_host()
                    if host.alive:
                        return host
                    host.close()
                    self._changed.notify_all()
            finally:
                self._waiting -= 1
                self._changed.notify_all()

    def pids(self) -> list[int]:
        """Processes of the hosts that have not been taken yet."""
        with self._changed:
            return [host.pid for host in (*self._ready, self._starting) if host is not None]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            starting, thread = self._starting, self._thread
            self._changed.notify_all()
        if starting is not None:
            starting.kill()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        for host in self._ready:
            host.close()
        self._ready.clear()

    def _await_host(self) -> HostProcess:
        """With the lock held."""
        while not self._ready and self._problem is None and not self._closed:
            self._changed.wait()
        if self._closed:
            raise HostDoesNotStart("the hooks are closed")
        if not self._ready and self._problem is not None:
            raise self._problem
        return self._ready.pop(0)

    def _keep_ready(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (
                    len(self._ready) >= self._waiting + _SPARES or self._problem is not None
                ):
                    self._changed.wait()
                if self._closed:
                    return
            self._start_one()

    def _start_one(self) -> None:
        problem = ""
        for _ in range(_START_ATTEMPTS):
            host: HostProcess | None = None
            try:
                host = HostProcess(self._setup, self._kill_after_ms)
                with self._changed:
                    self._starting = host
                    if self._closed:
                        raise HostDied("the hooks are closed")
                host.await_ready()
            except (HostDied, OSError) as e:
                problem = f"the hook host does not start: {e}"
                if host is not None:
                    host.close()
                continue
            self._log_once(host)
            with self._changed:
                self._starting = None
                self._ready.append(host)
                self._changed.notify_all()
            return
        with self._changed:
            self._starting = None
            self._problem = HostDoesNotStart(problem)
            self._changed.notify_all()

    def _log_once(self, host: HostProcess) -> None:
        if not self._logged:
            self._logged = True
            is_as_configured = host.confinement.filtered or self._setup.confinement == "off"
            level = logging.INFO if is_as_configured else logging.WARNING
            _log.log(level, "hook host confined by: %s", host.confinement)
