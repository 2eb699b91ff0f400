"""The part of `fairlead doctor` that asks who could do harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli import security_checks
from fairlead.cli.findings import Finding
from fairlead.cli.global_options import GlobalOptions
from fairlead.client.addresses import read_endpoint
from fairlead.config import AuthSettings, ServerSettings, TlsSettings
from fairlead.config.server import Address
from fairlead.testing.server import run_server
from tests.cli_views.conftest import Run

FREE = "127.0.0.1:1"


def by_name(found: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


@pytest.fixture(scope="module", params=["off", "keys"])
def asked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, Path]]:
    """A server, its address and its data directory."""
    data = tmp_path_factory.mktemp("doctor") / "data"
    with run_server(data, settings={"durability": "os", "auth.mode": request.param}) as server:
        yield request.param, server.address, data


def test_a_server_is_asked_what_a_stranger_would_get(run: Run, asked: tuple[str, str, Path]) -> None:
    mode, address, data = asked
    key = ["--api-key-file", data / "bootstrap.key"] if mode == "keys" else []
    found = json.loads(
        run("doctor", "--addr", address, "--grpc", FREE, "--http", FREE, *key, "-o", "json").stdout
    )["checks"]
    checks = {check["name"]: check for check in found if check["area"] == "security"}
    if mode == "keys":
        assert (checks["keys"]["level"], checks["API key"]["level"]) == ("ok", "ok")
    else:
        assert (checks["keys"]["level"], "may do everything" in checks["keys"]["found"]) == ("info", True)
    assert (checks["TLS"]["level"], "plaintext" in checks["TLS"]["found"]) == ("info", True)


def test_what_is_fine_on_loopback_is_a_warning_where_others_reach_it(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[str, str, Path]
) -> None:
    mode, address, _ = asked
    monkeypatch.setattr(security_checks, "is_loopback_host", lambda host: False)
    found = by_name(security_checks.anonymous_access(read_endpoint(address), None))
    assert (found["keys"].level, found["TLS"].level) == ("ok" if mode == "keys" else "warn", "warn")


def test_a_key_file_that_others_can_read_is_a_warning_and_a_missing_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.key").write_text("secret")
    (tmp_path / "bootstrap.key").chmod(0o640)
    (tmp_path / "mine").write_text("secret")
    (tmp_path / "mine").chmod(0o600)
    found = by_name(
        security_checks.security(
            tmp_path,
            read_endpoint("127.0.0.1:1"),
            None,
            GlobalOptions(api_key_file=tmp_path / "mine", tls_key=tmp_path / "none"),
            {},
        )
    )
    assert {name: finding.level for name, finding in found.items()} == {
        "bootstrap key": "warn",
        "API key": "ok",
    }
    assert "mode 0640" in found["bootstrap key"].found


def test_the_settings_in_the_environment_are_judged_as_a_server_would(tmp_path: Path) -> None:
    bad = by_name(security_checks.settings_here(tmp_path, {"FAIRLEAD_GRPC": "0.0.0.0:5555"}))["settings"]
    assert (bad.level, "no TLS" in bad.found) == ("bad", True)
    forced = by_name(
        security_checks.settings_here(
            tmp_path, {"FAIRLEAD_GRPC": "0.0.0.0:5555", "FAIRLEAD_INSECURE_PUBLIC": "true"}
        )
    )["settings"]
    assert (forced.level, "0.0.0.0:5555" in forced.found, "no keys, plaintext" in forced.found) == (
        "warn",
        True,
        True,
    )
    near = by_name(security_checks.settings_here(tmp_path, {"FAIRLEAD_REDACT_JSON_PATHS": "$.a"}))["settings"]
    assert (near.level, near.found) == (
        "ok",
        "only this machine can reach the server: no keys, plaintext, 5 headers and 1 paths redacted",
    )
    assert list(security_checks.settings_here(None, {"FAIRLEAD_LOG_LEVEL": "debug"})) == []


def test_a_public_server_with_keys_and_tls_is_well() -> None:
    settings = ServerSettings(
        data=Path("d"),
        flight=Address("0.0.0.0:1"),
        tls=TlsSettings("/c", "/k", "/a"),
        auth=AuthSettings("keys"),
    )
    (found,) = security_checks.exposure(settings)
    assert (
        found.level,
        "other machines can reach flight 0.0.0.0:1: keys, TLS with client certificates" in found.found,
    ) == ("ok", True)
