"""The files in deploy/ say what the code says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs.settings import EXAMPLE, MEANINGS, example_file
from fairlead.config import ServerSettings
from fairlead.config.load import SETTINGS, load_settings
from fairlead.errors import SettingInvalid
from fairlead.testing import run_server

DEPLOY = EXAMPLE.parent
ROOT = DEPLOY.parent


def instructions() -> list[tuple[str, str]]:
    """Of the Containerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)]


def test_every_setting_has_a_meaning_and_no_other_has() -> None:
    assert list(MEANINGS) == list(SETTINGS)


def test_the_example_file_is_fresh() -> None:
    assert EXAMPLE.read_text() == example_file(), "run: make docs"


def test_the_example_file_as_shipped_changes_nothing() -> None:
    assert load_settings(EXAMPLE, {}, {"data": "d"}) == ServerSettings(data=Path("d"))


def test_the_example_file_with_every_line_switched_on_is_the_defaults(tmp_path: Path) -> None:
    switched_on = re.sub(r"^#(\w+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(switched_on)
    tree = tomllib.loads(switched_on)
    assert sum(len(value) if isinstance(value, dict) else 1 for value in tree.values()) == len(SETTINGS)
    assert load_settings(tmp_path / "all.toml", {}, {}) == ServerSettings(data=Path("/var/lib/fairlead"))


def test_systemd_accepts_the_unit_and_finds_it_hard(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None and not os.environ.get("CI"):
        pytest.skip("no systemd here")
    unit = tmp_path / "fairlead.service"
    unit.write_text(
        (DEPLOY / "fairlead.service")
        .read_text()
        .replace("/opt/fairlead/bin/fairlead", str(Path(sys.executable).with_name("fairlead")))
    )
    assert (
        subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=True).stderr
        == ""
    )
    subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", unit],
        capture_output=True,
        check=True,
    )


def test_the_unit_restarts_whatever_a_restart_may_cure_and_waits_longer_than_the_grace() -> None:
    unit = dict(
        line.split("=", 1)
        for line in (DEPLOY / "fairlead.service").read_text().splitlines()
        if re.match(r"\w+=", line)
    )
    assert unit["Type"] == "notify"
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == "2 3"
    assert int(unit["TimeoutStopSec"]) * 1000 > ServerSettings(data=Path()).limits.drain_grace_ms
    loaded = load_settings(None, dict([unit["Environment"].replace("%S", "/var/lib").split("=", 1)]), {})
    written_to = [str(loaded.data), loaded.engine().checkpoint_dir]
    assert [f"/var/lib/{name}" for name in unit["StateDirectory"].split()] == written_to, (
        "all else is read-only there"
    )
    assert shlex.split(unit["ExecStart"])[1:3] == ["serve", "--config"]


def test_the_image_copies_what_exists_and_runs_without_rights() -> None:
    copied = [
        name
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert dict(instructions())["USER"] == "10001"
    assert dict(instructions())["ENTRYPOINT"] == '["fairlead", "serve"]'


def test_the_image_knows_every_variable_it_sets_and_serves_the_public_only_when_told() -> None:
    variables = dict(pair.split("=", 1) for pair in dict(instructions())["ENV"].split())
    with pytest.raises(SettingInvalid, match="expected a loopback address"):
        load_settings(None, variables, {})
    loaded = load_settings(None, variables | {"FAIRLEAD_INSECURE_PUBLIC": "true"}, {})
    assert loaded.limits.drain_grace_ms < 10_000
    assert {address.rpartition(":")[2] for address in loaded.addresses().values()} == set(
        dict(instructions())["EXPOSE"].split()
    )
    assert dict(instructions())["VOLUME"] == f"{loaded.data} {loaded.engine().checkpoint_dir}"


def test_the_health_check_of_the_image_tells_a_server_that_works_from_one_that_does_not(
    tmp_path: Path,
) -> None:
    found = re.search(r"CMD (\[.*\])", dict(instructions())["HEALTHCHECK"])
    assert found is not None
    _, option, code = tomllib.loads(f"command = {found[1]}")["command"]
    with run_server(tmp_path / "data", flight=False, http=True) as server:
        assert "127.0.0.1:5557" in code
        check = [sys.executable, option, code.replace("127.0.0.1:5557", server.addresses["http"])]
        assert subprocess.run(check, capture_output=True, check=False).returncode == 0
        server.kill()
        assert subprocess.run(check, capture_output=True, check=False).returncode != 0
