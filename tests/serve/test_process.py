"""Real processes: what signals do, what a failed start leaves, and what a stop keeps."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import fairlead
from fairlead.model.addresses import split_address
from fairlead.testing import ServerDidNotStart, ServerProcess
from fairlead.testing.server import PATIENCE_S, free_ports

SLOW = (sys.executable, "-m", "tests.serve.slow_server")


class Talk:
    """One connection to the slow door."""

    def __init__(self, server: ServerProcess) -> None:
        self._socket = socket.create_connection(split_address(server.address), timeout=PATIENCE_S)
        self._lines = self._socket.makefile("rw", newline="\n")

    def say(self, word: str) -> None:
        print(word, file=self._lines, flush=True)

    def hear(self) -> str:
        return self._lines.readline().strip()

    def begin(self, word: str) -> None:
        """Returns when the call is in flight."""
        self.say(word)
        assert self.hear() == "in"


@contextmanager
def slow_server(
    data: Path, address: str = "127.0.0.1:0", *arguments: str, **settings: object
) -> Iterator[ServerProcess]:
    by_path = {name.replace("__", "."): value for name, value in settings.items()}
    server = ServerProcess(data, {"resp": address}, by_path, (*SLOW, *arguments))
    try:
        server.start()
        yield server
    finally:
        if server._running().poll() is None:
            server.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with slow_server(tmp_path / "data", limits__drain_grace_ms="1h") as running:
        yield running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_call_in_flight_finish_and_exits_with_0(server: ServerProcess, number: int) -> None:
    talk, other = Talk(server), Talk(server)
    talk.begin("hold")
    os.kill(server.pid, number)
    until(lambda: "stopping" in server.log)
    other.say("hold")
    assert other.hear() == "server_stopping"
    talk.say("done")
    assert talk.hear() == "done"
    assert server.wait() == 0
    assert "calls are cut off" not in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("file", ["CURRENT", "IDENTITY"], ids=["census", "RocksDB"])
def test_a_signal_ends_a_process_that_is_still_opening_its_data(
    tmp_path: Path, file: str, number: int
) -> None:
    """A FIFO in the place of a file holds the open: the census reads CURRENT, and RocksDB itself reads
    IDENTITY.
    """
    data = tmp_path / "data"
    fairlead.open(data).close()
    (data / file).unlink()
    os.mkfifo(data / file)
    server = ServerProcess(data, {"resp": "127.0.0.1:0"}, {})
    ended: list[int] = []

    def start() -> None:
        try:
            server.start()
        except ServerDidNotStart as error:
            ended.append(error.code)

    starting = threading.Thread(target=start)
    starting.start()
    holding: list[int] = []
    until(lambda: open_for_writing(data / file, holding))
    os.kill(server.pid, number)
    starting.join()
    os.close(*holding)
    assert ended == [-number]
    assert server.out == ""


def open_for_writing(fifo: Path, opened: list[int]) -> bool:
    """False while nobody reads it."""
    with suppress(OSError):
        opened.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    return bool(opened)


def test_a_signal_that_the_system_gives_to_another_thread_is_heard(tmp_path: Path) -> None:
    with slow_server(tmp_path / "data", "127.0.0.1:0", "--never-look") as server:
        talk = Talk(server)
        talk.begin("signal")
        assert server.wait() == 0


def test_a_second_signal_does_not_wait_for_the_call_in_flight(server: ServerProcess) -> None:
    talk = Talk(server)
    talk.begin("hold")
    server.terminate()
    until(lambda: "stopping" in server.log)
    server.terminate()
    assert server.wait() == 0
    assert "calls are cut off calls_in_flight=1 hurried=True" in server.log


def test_a_stop_waits_for_calls_no_longer_than_its_grace(tmp_path: Path) -> None:
    with slow_server(tmp_path / "data", limits__drain_grace_ms=1) as server:
        talk = Talk(server)
        talk.begin("hold")
        assert server.stop() == 0
        assert "calls are cut off calls_in_flight=1 hurried=False" in server.log


def test_a_claim_that_waits_comes_back_empty_when_the_server_stops(server: ServerProcess) -> None:
    talk = Talk(server)
    talk.begin("claim")
    talk.hear()
    talk.begin("wait")
    server.terminate()
    assert talk.hear() == "0"
    assert server.wait() == 0


def test_leases_stay_when_the_server_stops(server: ServerProcess) -> None:
    talk = Talk(server)
    talk.begin("claim")
    lease = talk.hear()
    assert server.stop() == 0
    with fairlead.open(server.data) as broker:
        assert broker.stats("q").leased == 1
        assert broker.settle(
            [fairlead.Complete(fairlead.DeliveryRef(broker.peek("q", where="leased")[0].id, lease))]
        )[0].ok


def test_a_broker_that_stops_by_itself_ends_the_process_with_its_exit_code(server: ServerProcess) -> None:
    talk = Talk(server)
    talk.begin("break")
    assert talk.hear() == "store_failed"
    assert server.wait() == 10
    assert "the broker has stopped by itself" in server.log


def test_a_process_that_is_killed_can_be_started_again_on_its_port_and_data(server: ServerProcess) -> None:
    before = server.address
    server.restart(kill=True)
    assert server.address == before
    talk = Talk(server)
    talk.begin("claim")
    assert talk.hear()


def test_a_paused_process_answers_when_it_goes_on(server: ServerProcess) -> None:
    talk = Talk(server)
    talk.begin("hold")
    server.pause()
    assert Path(f"/proc/{server.pid}/stat").read_text().split()[2] == "T"
    talk.say("done")
    server.resume_process()
    assert talk.hear() == "done"


def test_the_log_holds_neither_payload_nor_headers(tmp_path: Path) -> None:
    with slow_server(tmp_path / "data", log__level="debug", log__format="json") as server:
        talk = Talk(server)
        talk.begin("claim")
        lease = talk.hear()
        server.stop()
        events = [json.loads(line) for line in server.log.splitlines()]
        assert [event["event"] for event in events] == ["serving", "stopping", "stopped"]
        assert "secret" not in server.log
        assert lease not in server.log


def test_a_port_that_is_taken_is_an_error_that_names_it_and_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(
                ServerDidNotStart,
                match=f"expected to listen on {address} \\(resp\\), got: Address already in use",
            ) as failed,
            slow_server(tmp_path / "data", address),
        ):
            pass
    assert failed.value.code == 7
    assert not (tmp_path / "data").exists()


def test_a_second_server_on_the_same_data_is_refused(server: ServerProcess) -> None:
    with (
        pytest.raises(ServerDidNotStart, match="expected to be the only process") as failed,
        slow_server(server.data),
    ):
        pass
    assert failed.value.code == 7


def test_systemd_is_told_when_the_server_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.settimeout(PATIENCE_S)
        path = f"/tmp/fairlead-notify-{os.getpid()}"
        heard.bind(path)
        try:
            monkeypatch.setenv("NOTIFY_SOCKET", path)
            with slow_server(tmp_path / "data") as server:
                assert heard.recv(100) == b"READY=1"
                server.stop()
                assert heard.recv(100) == b"STOPPING=1"
        finally:
            os.unlink(path)


def fairlead_serve(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fairlead.cli import main; main()", "serve", *arguments]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_settings_that_are_wrong_are_all_named_and_nothing_is_started(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text('flight = "127.0.0.1:0"\n[limits]\nmax_cals = 3\n')
    ended = fairlead_serve(
        "--data",
        str(tmp_path / "data"),
        "--config",
        str(file),
        "--durability",
        "paper",
        "--set",
        "log.level=loud",
    )
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert (
        f"{file}:3: limits.max_cals: expected a known setting, did you mean limits.max_calls?" in ended.stderr
    )
    assert 'durability: expected "fsync" or "os", got \'paper\'' in ended.stderr
    assert "log.level: expected" in ended.stderr
    assert not (tmp_path / "data").exists()


def test_a_public_address_is_refused_unless_it_is_insisted_on(tmp_path: Path) -> None:
    ended = fairlead_serve(
        "--data", str(tmp_path / "data"), "--flight", "0.0.0.0:0", "--grpc", "off", "--http", "off"
    )
    assert ended.returncode == 3
    assert (
        "expected a loopback address, or TLS and keys, got 0.0.0.0:0, which other machines can reach, with no TLS"
        in ended.stderr
    )


def test_a_flag_without_an_equals_sign_behind_set_is_refused(tmp_path: Path) -> None:
    ended = fairlead_serve("--data", str(tmp_path / "data"), "--set", "log.level")
    assert ended.returncode == 3
    assert "--set: expected NAME=VALUE, got 'log.level'" in ended.stderr


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    assert len(set(free_ports(20))) == 20
    assert max(free_ports(20)) < 32_000


def test_tests_that_run_side_by_side_do_not_take_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(7)
    mine = free_ports(5)
    random.seed(7)  # as Hypothesis does
    assert free_ports(5) != mine
    places = []
    for worker in ("gw0", "gw1", "gw11"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        places.append({port // 1000 for port in free_ports(5)})
    assert len(set[int]().union(*places)) == 3 == sum(map(len, places))


def test_threads_that_start_servers_side_by_side_do_not_take_the_same_port() -> None:
    with ThreadPoolExecutor(8) as pool:
        given = [port for ports in pool.map(free_ports, [5] * 80) for port in ports]
    assert len(set(given)) == 400


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


_TELLS_OF_ITS_COLLECTOR = """
import gc, os, sys
from pathlib import Path
import fairlead
from fairlead.config import ServerSettings
from fairlead.server.serve import Server, run

# 700, and 2,000 from Python 3.13 on.
default = gc.get_threshold()[0]

def tell():
    print(gc.get_freeze_count() > 0, gc.get_threshold()[0] > default)

data = Path(sys.argv[1])
fairlead.open(data).close()
tell()
settings = ServerSettings(data=data, resp="off", flight="127.0.0.1:0", grpc="off", http="off")
server = Server(settings, lambda *given: [])
run(server, ready=lambda: (tell(), server.tell_to_stop()))
"""


def test_a_server_process_spares_what_is_open_from_the_collector_and_the_library_does_not(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", _TELLS_OF_ITS_COLLECTOR, str(tmp_path / "data")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert told.stdout.split() == ["False", "False", "True", "True"], told.stderr
