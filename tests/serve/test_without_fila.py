"""A server in an environment that lacks the packages of the gRPC door: `fairlead[server]` without `fairlead[fila]`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead
from fairlead.cli import machine_checks, security_checks
from fairlead.config.load import LoadedSettings, load_with_sources
from fairlead.errors import SettingInvalid
from fairlead.server.fila import packages
from fairlead.testing import ServerDidNotStart, ServerProcess
from fairlead.testing.server import PATIENCE_S, free_ports

INSTALL = "pip install 'fairlead[fila]'"
BLOCKED = ("grpc", "grpc_health", "grpc_reflection", "google.protobuf")
BLOCK = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if not any(name == one or name.startswith(one + ".") for one in {BLOCKED!r}):
            return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = map(Without, sys.meta_path)
"""
SERVE = (sys.executable, "-c", BLOCK + "from fairlead.cli import main; main()", "serve", "-o", "json")
WHY = "No module named 'grpc'"


def run(code: str, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code, *args],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def loaded(**given: object) -> LoadedSettings:
    return load_with_sources(None, {}, {"data": "d", **given})


def test_every_module_of_server_and_commands_but_those_of_the_door_can_be_imported() -> None:
    ran = run("""
import importlib, pkgutil, fairlead.cli, fairlead.server
def names(package):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        yield found.name
        if found.ispkg and found.name != "fairlead.server.fila":
            yield from names(importlib.import_module(found.name))
for name in [*names(fairlead.server), *names(fairlead.cli), "fairlead.server.fila.packages", "fairlead.testing"]:
    if not name.endswith("__main__"):
        importlib.import_module(name)
        print(name)
""")
    assert ran.returncode == 0, ran.stderr
    assert {"fairlead.server.serve", "fairlead.server.flight", "fairlead.cli.doctor"} < set(
        ran.stdout.split()
    )


def test_a_server_that_was_not_told_of_the_door_opens_the_others_and_says_so_in_one_line(
    tmp_path: Path,
) -> None:
    resp, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    server = ServerProcess(tmp_path / "data", {"resp": resp, "http": http}, {"grpc": None}, SERVE)
    try:
        server.start()
        assert server.addresses == {"resp": resp, "http": http}
        with fairlead.connect(server.address) as client:
            client.create_queue("q")
        assert server.stop() == 0
    finally:
        if server._running().poll() is None:
            server.kill()
    (line,) = [line for line in server.log.splitlines() if "gRPC door" in line]
    assert "is off" in line
    assert INSTALL in line


def test_a_server_that_was_told_of_the_door_does_not_start(tmp_path: Path) -> None:
    resp, grpc = (f"127.0.0.1:{port}" for port in free_ports(2))
    server = ServerProcess(tmp_path / "data", {"resp": resp, "grpc": grpc}, {}, SERVE)
    with pytest.raises(ServerDidNotStart) as refused:
        server.start()
    error = json.loads(refused.value.log.splitlines()[-1])["error"]
    assert (error["code"], refused.value.code) == ("setting_invalid", 3)
    assert error["message"].startswith("FAIRLEAD_GRPC: grpc: ")
    assert INSTALL in error["message"]
    assert not (tmp_path / "data").exists()


def test_an_address_that_somebody_gave_is_refused_where_it_was_given(tmp_path: Path) -> None:
    default, file = "127.0.0.1:5555", tmp_path / "fairlead.toml"
    file.write_text(f'data = "d"\ngrpc = "{default}"\n')
    for source, given in {
        "command line": loaded(grpc=default),
        "FAIRLEAD_GRPC": load_with_sources(None, {"FAIRLEAD_DATA": "d", "FAIRLEAD_GRPC": default}, {}),
        f"{file}:2": load_with_sources(file, {}, {}),
    }.items():
        with pytest.raises(SettingInvalid) as refused:
            packages.settings_without(given, WHY)
        assert (refused.value.source, refused.value.path) == (source, "grpc")
        assert INSTALL in refused.value.message


def test_only_the_default_address_is_given_up_and_not_the_last_door() -> None:
    assert packages.settings_without(loaded(), WHY).addresses().keys() == {"resp", "flight", "http"}
    off = loaded(grpc="off")
    assert packages.settings_without(off, WHY) == off.settings
    with pytest.raises(SettingInvalid, match=r"settings: grpc: .*fairlead\[fila\]"):
        packages.settings_without(loaded(resp="off", flight="off", http="off"), WHY)


def test_packages_that_are_too_old_for_the_generated_classes_are_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert packages.why_unusable() == ""

    def refuse(name: str) -> None:
        raise RuntimeError("the grpc package is at 1.60,\n but the generated code depends on >=1.85.1")

    monkeypatch.setattr(packages, "import_module", refuse)
    assert (
        packages.why_unusable() == "the grpc package is at 1.60, but the generated code depends on >=1.85.1"
    )


def test_the_doctor_says_that_there_is_no_door_and_what_a_server_would_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (machine_checks, security_checks):
        monkeypatch.setattr(module, "why_unusable", lambda: WHY)
    (door,) = [found for found in machine_checks.packages() if found.name == "fila"]
    assert (door.level, WHY in door.found, door.advice) == ("warn", True, INSTALL), "there, and too old"
    (asked,) = security_checks.settings_here(tmp_path, {"FAIRLEAD_GRPC": "127.0.0.1:5555"})
    assert (asked.level, INSTALL in asked.found) == ("bad", True)
    (default,) = security_checks.settings_here(tmp_path, {"FAIRLEAD_LOG_LEVEL": "debug"})
    assert default.level == "ok"


def test_the_doctor_finds_the_packages_missing_and_nothing_bad() -> None:
    ran = run("from fairlead.cli import main; main()", "doctor", "-o", "json")
    found = {(one["area"], one["name"]): one for one in json.loads(ran.stdout)["checks"]}
    assert found["packages", "server"]["level"] == "ok"
    door = found["packages", "fila"]
    assert (door["level"], door["advice"]) == ("info", INSTALL)
    assert "missing: grpcio, grpcio-health-checking, grpcio-reflection, protobuf; " in door["found"]
    assert "no gRPC door" in door["found"]
