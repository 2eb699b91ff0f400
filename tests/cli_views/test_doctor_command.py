from __future__ import annotations

import http.server
import json
import os
import re
import resource
import socket
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

import fairlead
from fairlead.cli import data_checks, machine_checks, server_checks
from fairlead.cli.doctor import findings_view
from fairlead.cli.findings import Finding
from fairlead.client.addresses import read_endpoint
from fairlead.config import Settings
from fairlead.hooks.confine import Confinement
from tests.cli_views.conftest import Run
from tests.cli_views.values import drawn

ROOT = Path(__file__).parents[2]
FREE = "127.0.0.1:1"


def by_name(found: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


def test_a_healthy_machine_and_directory_have_nothing_bad(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cli.doctor.DEFAULT_ADDR", FREE)  # a server may run where this test does
    found = json.loads(run("doctor", "--data", data, "--grpc", FREE, "--http", FREE, "-o", "json").stdout)
    assert found["ok"] is True
    seen = {(check["area"], check["name"]) for check in found["checks"]}
    assert seen == {
        *(("machine", name) for name in ("python", "clock", "open files", "hook host", "hook confinement")),
        *(("packages", name) for name in ("needed", "client", "bulk", "server", "fila", "otel")),
        *(("spark", name) for name in ("packages", "java")),
        *(
            ("data", name)
            for name in (
                "format",
                "rights",
                "disk space",
                "file system",
                "open in",
                "modes",
                "clock",
                "fsync",
            )
        ),
        *(("server", name) for name in ("resp", "flight", "grpc", "http")),
        ("certificates", "tls"),
    }
    assert fairlead.verify(data).ok


def test_anything_bad_makes_the_exit_code_1(run: Run, place: Path) -> None:
    (place / "file").write_text("")
    text = run("doctor", "--data", place / "file", code=1).stdout
    (line,) = [line for line in text.splitlines() if "is not a directory" in line]
    assert line.split()[:3] == ["data", "bad", "directory"]
    assert json.loads(run("doctor", "--data", place / "file", "-o", "json", code=1).stdout)["ok"] is False


def test_a_server_that_was_named_must_be_there(run: Run) -> None:
    found = json.loads(run("doctor", "--addr", FREE, "-o", "json", code=1).stdout)["checks"]
    resp = next(check for check in found if check["name"] == "resp")
    assert (resp["level"], "fairlead serve" in resp["advice"]) == ("bad", True)
    assert next(check for check in found if check["area"] == "data")["found"] == "none given"


def test_findings_are_a_line_each_with_what_to_do_below() -> None:
    found = [Finding("data", "modes", "warn", "a\x1b", "chmod"), Finding("data", "clock", "ok", "fine")]
    assert drawn(findings_view(found)) == [
        "data  warn  modes  a\\x1b",
        "                   → chmod",
        "      ok    clock  fine",
    ]


# This machine


def test_the_hook_host_really_runs_a_script() -> None:
    assert machine_checks.hook_host().level == "ok"


def test_a_hook_that_does_not_do_what_it_says_is_bad() -> None:
    found = machine_checks.hook_host("function on_enqueue(msg) error('no such thing') end")
    assert (found.level, "no such thing" in found.found) == ("bad", True)


def test_a_hook_host_that_does_not_start_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert machine_checks.hook_host().level == "bad"


@pytest.mark.parametrize(
    ("offered", "level"),
    [
        (Confinement(("seccomp", "limits")), "ok"),
        (Confinement(("seccomp", "limits"), ("landlock (ENOSYS)",)), "info"),
        (Confinement(("limits",), ("seccomp (EINVAL)", "landlock (ENOSYS)")), "warn"),
    ],
)
def test_what_would_not_hold_a_hook_host_is_named(offered: Confinement, level: str) -> None:
    found = machine_checks.hook_confinement(offered)
    assert (found.level, found.found) == (level, str(offered))
    assert all(missing in found.found for missing in offered.missing)
    assert ("lua.confinement" in found.advice) == (level == "warn")


@pytest.mark.parametrize(
    ("limit", "level"), [(256, "warn"), (1023, "warn"), (1024, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_few_open_files_are_a_warning(limit: int, level: str) -> None:
    found = machine_checks.open_files(limit)
    assert (found.level, "ulimit -n" in found.advice) == (level, level == "warn")


def test_a_clock_from_before_fairlead_is_bad() -> None:
    assert [machine_checks.clock(now_s).level for now_s in (0.0, time.time())] == ["bad", "ok"]


@pytest.mark.parametrize(
    ("extra", "level"),
    [("needed", "bad"), ("server", "warn"), ("client", "warn"), ("fila", "info"), ("otel", "info")],
)
def test_a_missing_package_counts_by_what_needs_it(extra: str, level: str) -> None:
    found = machine_checks.extra(extra, {"rich": "rich", "no-such-thing": "no_such_thing.part"})
    assert found.level == level
    assert found.found.startswith("rich ")
    assert found.found.endswith("; missing: no-such-thing")
    assert found.advice.startswith("pip install")


def test_a_package_that_is_there_and_cannot_be_imported_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halfinstalled.py").write_text("raise ImportError('libfoo.so.3 is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    found = machine_checks.extra("otel", {"halfinstalled": "halfinstalled"})
    assert found.level == "bad"
    assert "libfoo.so.3 is missing" in found.found


def test_the_extras_looked_for_are_those_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(wanted: list[str]) -> set[str]:
        own = re.compile(r"(?!fairlead\[)[\w-]+")
        return {found[0] for line in wanted if (found := own.match(line))}

    assert names(declared["dependencies"]) == set(machine_checks.CORE)
    assert {extra: names(declared["optional-dependencies"][extra]) for extra in machine_checks.EXTRAS} == {
        extra: set(contents) for extra, contents in machine_checks.EXTRAS.items()
    }


# A data directory


def test_a_directory_that_does_not_exist_yet_is_fine_where_one_can_be_made(place: Path) -> None:
    found = by_name(data_checks.data_directory(place / "a" / "b", Settings()))
    assert found["directory"].level == "info"
    assert found["rights"].level == "ok"
    assert found["fsync"].level == "info"
    assert list(place.iterdir()) == []


def test_an_empty_directory_is_fine_and_stays_empty(place: Path) -> None:
    assert by_name(data_checks.data_directory(place, Settings()))["format"].level == "info"
    assert list(place.iterdir()) == []


def test_a_directory_of_somebody_else_is_bad(place: Path) -> None:
    (place / "letter.txt").write_text("hello")
    assert data_checks.data_format(place).level == "bad"


def test_a_format_from_the_future_is_bad(data: Path) -> None:
    (data / "FAIRLEAD_FORMAT").write_text("99\n")
    found = data_checks.data_format(data)
    assert (found.level, "99" in found.found) == ("bad", True)


def test_looking_at_a_directory_leaves_no_file_behind(data: Path) -> None:
    before = sorted(data.iterdir())
    list(data_checks.data_directory(data, Settings()))
    assert sorted(data.iterdir()) == before


@pytest.mark.parametrize(("part", "level"), [(0.1, "ok"), (0.5, "warn"), (2.0, "bad")])
def test_room_is_measured_against_the_reserve(place: Path, part: float, level: str) -> None:
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    assert data_checks.room(place, int(free * part)).level == level


def test_files_that_others_may_read_or_write_are_a_warning(data: Path) -> None:
    data.chmod(0o755)
    for file in data.iterdir():
        file.chmod(0o600)
    assert (data_checks.modes(data).level, str(data) in data_checks.modes(data).found) == ("warn", True)
    data.chmod(0o711)
    assert data_checks.modes(data).level == "ok"
    (data / "CURRENT").chmod(0o640)
    assert (data_checks.modes(data).level, "CURRENT (mode 0640)" in data_checks.modes(data).found) == (
        "warn",
        True,
    )
    data.chmod(0o700)
    assert data_checks.modes(data).level == "ok"
    (data / "CURRENT").chmod(0o666)
    found = data_checks.modes(data)
    assert (found.level, found.advice) == ("warn", f"chmod -R go-w {data}")


def test_files_from_the_future_mean_that_the_clock_was_set_back(data: Path) -> None:
    now_s = time.time()
    assert data_checks.newest_file(data, now_s + 60).level == "ok"
    assert data_checks.newest_file(data, now_s - 3600).level == "warn"


def test_the_process_that_has_it_open_is_named(data: Path) -> None:
    assert data_checks.holder(data).level == "ok"
    with fairlead.open(data, durability="os"):
        found = data_checks.holder(data)
    assert (found.level, found.found.split(" (")[0]) == ("info", f"process {os.getpid()}")


def test_memory_is_no_disk(tmp_path: Path) -> None:
    if Path("/dev/shm").is_dir() and "tmpfs" in Path("/proc/self/mounts").read_text():
        assert data_checks.file_system(Path("/dev/shm")).level == "warn"
    assert data_checks.file_system(Path("/proc")).found == "proc"


# A server


Answer = tuple[int, bytes]


@pytest.fixture
def web() -> Iterator[Callable[[dict[str, Answer], float], str]]:
    servers = []

    def serve(answers: dict[str, Answer], ahead_s: float = 0.0) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, b""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(time.time() + ahead_s)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield serve  # type: ignore[misc]
    for server in servers:
        server.shutdown()
        server.server_close()


def metrics_of(version: str) -> Answer:
    return 200, f'# HELP x\nfairlead_build_info{{version="{version}",python="3.11.7"}} 1.0\n'.encode()


def test_a_server_that_is_ready_says_so_with_its_version_and_clock(web: Callable[..., str]) -> None:
    address = web({"/readyz": (200, b"ok"), "/metrics": metrics_of(fairlead.__version__)})
    found = by_name(server_checks.http_door(address))
    assert {name: finding.level for name, finding in found.items()} == {
        "http": "ok",
        "version": "ok",
        "clock": "ok",
    }


def test_a_server_that_is_not_ready_is_bad_with_its_reason(web: Callable[..., str]) -> None:
    found = by_name(server_checks.http_door(web({"/readyz": (503, b"the store\nfailed")})))
    assert found["http"].level == "bad"
    assert "503: the store failed" in found["http"].found


def test_another_version_and_another_time_are_warnings(web: Callable[..., str]) -> None:
    found = by_name(
        server_checks.http_door(web({"/readyz": (200, b""), "/metrics": metrics_of("99.0")}, 3600.0))
    )
    assert (found["version"].level, "99.0" in found["version"].found) == ("warn", True)
    assert (found["clock"].level, "ahead" in found["clock"].found) == ("warn", True)


def test_doors_that_are_shut_are_only_told() -> None:
    assert server_checks.grpc_door(FREE).level == "info"
    assert [finding.level for finding in server_checks.http_door(FREE)] == ["info"]
    assert server_checks.flight_door(FREE).level == "info"
    assert [server_checks.resp_door(read_endpoint(FREE), asked).level for asked in (False, True)] == [
        "info",
        "bad",
    ]


def test_something_else_that_listens_there_is_bad() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.sendall(b"SSH-2.0-none\r\n")
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        found = by_name(server_checks.http_door(f"127.0.0.1:{listener.getsockname()[1]}"))
    assert found["http"].level == "bad"


@pytest.mark.parametrize(
    ("status", "level"), [(HealthCheckResponse.SERVING, "ok"), (HealthCheckResponse.NOT_SERVING, "bad")]
)
def test_the_grpc_door_is_asked_for_its_health(status: int, level: str) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = health.HealthServicer()
    servicer.set("", status)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert server_checks.grpc_door(f"127.0.0.1:{port}").level == level
    finally:
        server.stop(0).wait()


def test_a_grpc_server_without_health_is_bad() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        found = server_checks.grpc_door(f"127.0.0.1:{port}")
    finally:
        server.stop(0).wait()
    assert (found.level, "UNIMPLEMENTED" in found.found) == ("bad", True)
