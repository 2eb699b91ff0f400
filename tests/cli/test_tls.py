from __future__ import annotations

import json
import re
import shlex
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fairlead.cli.certificate_checks import ending
from fairlead.testing.authority import Authority, hosts_of
from tests.cli.conftest import Commands

NAMES = ("ca.key", "ca.pem", "client.key", "client.pem", "server.key", "server.pem")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_init_makes_an_authority_and_two_certificates_that_it_has_signed(
    cli: Commands, tmp_path: Path
) -> None:
    made = tmp_path / "tls"
    cli.ok("tls", "init", made, "--host", "fairlead.example", "--host", "10.1.2.3")
    assert sorted(content(made)) == list(NAMES)
    ca, server, client = (
        x509.load_pem_x509_certificate((made / f"{name}.pem").read_bytes())
        for name in ("ca", "server", "client")
    )
    for signed in (server, client):
        signed.verify_directly_issued_by(ca)
    assert hosts_of((made / "server.pem").read_bytes()) == [
        "localhost",
        "127.0.0.1",
        "::1",
        "fairlead.example",
        "10.1.2.3",
    ]


def test_secrets_are_for_their_owner_only(cli: Commands, tmp_path: Path) -> None:
    made = tmp_path / "deep" / "tls"
    cli.ok("tls", "init", made)
    assert mode(made) == 0o700
    assert {name: mode(made / name) for name in NAMES if name.endswith(".key")} == dict.fromkeys(
        ("ca.key", "client.key", "server.key"), 0o600
    )


def test_what_is_there_is_not_overwritten(cli: Commands, tmp_path: Path) -> None:
    (tmp_path / "server.key").write_text("mine")
    ran = cli("tls", "init", tmp_path)
    assert ran.code == 2
    assert (
        f"expected no server.key in {tmp_path}, there is one; give --renew to sign new certificates, or --force to replace all files"
        in ran.err
    )
    assert content(tmp_path) == {"server.key": b"mine"}


def test_force_begins_anew(cli: Commands, tmp_path: Path) -> None:
    cli.ok("tls", "init", tmp_path)
    before = content(tmp_path)
    cli.ok("tls", "init", tmp_path, "--force")
    assert [name for name, now in content(tmp_path).items() if now == before[name]] == []


def test_renewing_keeps_the_authority_and_the_hosts(cli: Commands, tmp_path: Path) -> None:
    cli.ok("tls", "init", tmp_path, "--host", "fairlead.example")
    before = content(tmp_path)
    cli.ok("tls", "init", tmp_path, "--renew", "--host", "10.1.2.3")
    after = content(tmp_path)
    assert sorted(name for name in NAMES if after[name] == before[name]) == ["ca.key", "ca.pem"]
    assert hosts_of(after["server.pem"]) == ["localhost", "127.0.0.1", "::1", "fairlead.example", "10.1.2.3"]
    x509.load_pem_x509_certificate(after["server.pem"]).verify_directly_issued_by(
        x509.load_pem_x509_certificate(after["ca.pem"])
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--renew"], "expected an authority in .*, found no ca.pem; create one without --renew"),
        (["--renew", "--force"], "expected --renew, which keeps the authority, or --force"),
        (["--host", "größe"], "expected --host to be a host name or an address"),
        (["--days", "0"], "days"),
    ],
)
def test_what_makes_no_sense_makes_nothing(cli: Commands, tmp_path: Path, args: list[str], said: str) -> None:
    ran = cli("tls", "init", tmp_path / "tls", *args)
    assert ran.code == 2
    assert re.search(said, ran.err), ran.err
    assert not (tmp_path / "tls").exists()


def test_an_authority_that_is_none_cannot_renew(cli: Commands, tmp_path: Path) -> None:
    cli.ok("tls", "init", tmp_path)
    (tmp_path / "ca.key").write_bytes(Authority().issued.key)
    ran = cli("tls", "init", tmp_path, "--renew")
    assert ran.code == 2
    assert "replace them with --force" in ran.err


def test_the_commands_it_prints_are_those_to_type(cli: Commands, tmp_path: Path) -> None:
    made = tmp_path / "with a space"
    lines = [line.strip() for line in cli.ok("tls", "init", made).lines]
    serve, *talk = (shlex.split(line) for line in lines if line.startswith("fairlead "))
    assert [word for word in serve if word.startswith("tls.")] == [
        f"tls.cert={made / 'server.pem'}",
        f"tls.key={made / 'server.key'}",
    ]
    assert talk[0][1:3] == ["--tls-ca", str(made / "ca.pem")]
    assert talk[1][1:7] == [
        "--tls-ca",
        str(made / "ca.pem"),
        "--tls-cert",
        str(made / "client.pem"),
        "--tls-key",
        str(made / "client.key"),
    ]


def test_json_has_the_paths(cli: Commands, tmp_path: Path) -> None:
    said = cli.json("tls", "init", tmp_path / "tls")
    assert sorted(said["files"]) == list(NAMES)
    assert all(Path(path).is_file() for path in said["files"].values())
    assert said["hosts"] == ["localhost", "127.0.0.1", "::1"]


@pytest.mark.parametrize(("days", "level"), [(-1, "bad"), (0, "warn"), (29, "warn"), (31, "ok")])
def test_the_doctor_judges_a_certificate_by_what_is_left_of_it(days: int, level: str) -> None:
    issued = Authority().for_server()
    assert (
        ending("flight", "127.0.0.1:1", issued.ends, issued.ends - timedelta(days=days, hours=1)).level
        == level
    )


def test_a_key_file_that_others_can_read_is_warned_of(cli: Commands, tmp_path: Path) -> None:
    nobody = ("--addr", "127.0.0.1:1", "--wait", "0ms")
    key = tmp_path / "api.key"
    key.write_text("fl_secret\n")
    key.chmod(0o644)
    env = {"FAIRLEAD_DATA": None}
    ran = cli(*nobody, "--api-key-file", key, "queue", "list", env=env)
    assert f"warning: other users can read {key} (mode 0644); run: chmod 600 {key}" in ran.err
    assert "fl_secret" not in ran.err
    key.chmod(0o600)
    assert "warning" not in cli(*nobody, "queue", "list", "--api-key-file", key, env=env).err


@pytest.mark.parametrize(
    ("args", "env", "said"),
    [
        (["--tls-cert", "c.pem"], {}, "expected --tls-cert and --tls-key together"),
        (["--api-key-file", "empty"], {}, "expected an API key in empty, the file is empty"),
        (
            [],
            {"FAIRLEAD_API_KEY": "fl_secret", "FAIRLEAD_API_KEY_FILE": "empty"},
            "expected FAIRLEAD_API_KEY or FAIRLEAD_API_KEY_FILE, not both",
        ),
    ],
)
def test_credentials_that_make_no_sense_are_wrong_usage(
    cli: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    env: dict[str, str | None],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch(0o600)
    ran = cli("queue", "list", "--addr", "127.0.0.1:1", *args, env={"FAIRLEAD_DATA": None, **env})
    assert ran.code == 2
    assert said in ran.err
    assert "fl_secret" not in ran.err


def test_a_file_that_is_not_there_is_named(cli: Commands, tmp_path: Path) -> None:
    ran = cli(
        "queue",
        "list",
        "--addr",
        "127.0.0.1:1",
        "--tls-ca",
        tmp_path / "none.pem",
        "-o",
        "json",
        env={"FAIRLEAD_DATA": None},
    )
    assert json.loads(ran.err)["error"]["code"] == "invalid_request"
    assert "none.pem" in ran.err
    ran = cli(
        "queue",
        "list",
        "--addr",
        "127.0.0.1:1",
        "--api-key-file",
        tmp_path / "none.key",
        env={"FAIRLEAD_DATA": None},
    )
    assert (ran.code, ran.err) == (1, f"error: No such file or directory: {tmp_path / 'none.key'}\n")
