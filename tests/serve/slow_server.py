"""A server whose only door does as it is told, one word a line, so that a test decides when a call is in
flight.
"""

from __future__ import annotations

import linecache
import os
import signal
import socket
import sys
import threading
import time

from fairlead import Broker
from fairlead.cli.global_options import GlobalOptions, Output, set_options
from fairlead.cli.serve import run_and_exit
from fairlead.config import ServerSettings
from fairlead.config.load import load_settings
from fairlead.errors import FairleadError, StoreFailed
from fairlead.model.addresses import split_address
from fairlead.server import logs, serve
from fairlead.server.doors import Door
from fairlead.server.limits import Limits
from fairlead.server.serve import Server
from fairlead.testing.storage import fail_syncs


class SlowDoor:
    """What a line says is one call.

    `hold` lasts until the next line, `wait` is a claim that waits for an hour, `claim` takes a lease; on
    `signal` this thread, not the main one, gets a SIGTERM; on `break` the store fails.
    """

    name = "resp"

    def __init__(self, broker: Broker, address: str, limits: Limits) -> None:
        self.address = address
        self._broker = broker
        self._limits = limits
        self._listener = socket.create_server(split_address(address, may_pick_port=True))

    def start(self) -> None:
        host, port = self._listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def drain(self) -> None: ...

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Stopped: a traceback of the test's own door is no line of the server's log.
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        lines = connection.makefile("rw", newline="\n")
        for line in lines:
            try:
                with self._limits.waiting_call() if line == "wait\n" else self._limits.call():
                    print("in", file=lines, flush=True)
                    answer = self._obey(line.strip(), lines)
            except FairleadError as error:
                answer = error.code
            print(answer, file=lines, flush=True)

    def _obey(self, word: str, lines: object) -> str:
        if word == "hold":
            return next(lines).strip()  # type: ignore[call-overload]
        if word == "wait":
            return str(len(self._broker.claim("q", wait="1h")))
        if word == "claim":
            return self._broker.claim("q")[0].lease
        if word == "signal":
            while not _main_thread_sleeps():
                time.sleep(0.01)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            return "told"
        assert word == "break"
        fail_syncs(self._broker, StoreFailed("told to"))
        self._broker.enqueue("q", b"")
        return "unreachable"


def _main_thread_sleeps() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return "select.select" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def _doors(broker: Broker, settings: ServerSettings, limits: Limits) -> list[Door]:
    if not broker.queues("q"):
        broker.create_queue("q")
        broker.enqueue("q", b"secret payload", headers={"secret": "header"})
    return [SlowDoor(broker, settings.resp, limits)]


def main() -> None:
    set_options(GlobalOptions(output=Output.json))
    if "--never-look" in sys.argv:
        serve.HEALTH_CHECK_S = 10**6
    settings = load_settings(None, os.environ, {})
    logs.set_up(settings.log)
    run_and_exit(Server(settings, _doors))


if __name__ == "__main__":
    main()
