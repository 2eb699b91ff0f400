"""What a client shows a server: it goes along with every call, and shows nowhere else."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fila
import pytest
from typer.testing import CliRunner

import fairlead
import fairlead.aio
from fairlead.cli.app import app
from fairlead.client.addresses import Endpoint
from fairlead.client.identity import Identity
from fairlead.errors import InvalidRequest, Unauthenticated
from fairlead.testing import ServerProcess, run_server
from tests.security.callers import CommandFailed, run_command
from tests.security.certificates import Files

SECRET = "fl_aaaaaaaaaaaa_" + "s" * 43


class Guarded(NamedTuple):
    """A server that asks for a client certificate and for a key, and has a queue `q`."""

    server: ServerProcess
    files: Files
    key_file: Path
    key: str

    @property
    def tls(self) -> fairlead.Tls:
        return fairlead.Tls(self.files.ca, self.files.cert("client"), self.files.key("client"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    root = tmp_path_factory.mktemp("guarded")
    files = Files(root / "tls")
    files.server()
    files.client()
    settings = files.settings(mutual=True) | {"auth.mode": "keys", "durability": "os"}
    with run_server(root / "data", grpc=True, http=True, settings=settings) as server:
        key_file = root / "data" / "bootstrap.key"
        guarded = Guarded(server, files, key_file, key_file.read_text().strip())
        with fairlead.connect(server.address, api_key=guarded.key, tls=guarded.tls) as client:
            client.create_queue("q")
        yield guarded


def test_the_published_client_works_through_mutual_tls_with_a_key(guarded: Guarded) -> None:
    files = guarded.files
    known = {
        "ca_cert": files.ca.read_bytes(),
        "client_cert": files.cert("client").read_bytes(),
        "client_key": files.key("client").read_bytes(),
    }
    with fila.Client(guarded.server.addresses["grpc"], api_key=guarded.key, **known) as client:
        sent = client.enqueue("q", {"tenant": "acme"}, b"hello")
        received = next(client.consume("q"))
        assert (received.id, received.payload) == (sent, b"hello")
        client.ack("q", sent)
    for wrong in (SECRET, None):
        with (
            fila.Client(guarded.server.addresses["grpc"], api_key=wrong, **known) as client,
            pytest.raises(fila.RPCError, match="UNAUTHENTICATED"),
        ):
            client.enqueue("q", None, b"hello")


@pytest.mark.parametrize("key", [None, SECRET])
def test_a_client_without_a_valid_key_is_told_at_once(guarded: Guarded, key: str | None) -> None:
    with pytest.raises(Unauthenticated):
        fairlead.connect(guarded.server.address, api_key=key, tls=guarded.tls, retry_for="10m")


def test_a_client_keeps_its_credentials_over_a_restart(guarded: Guarded) -> None:
    with (
        fairlead.connect(guarded.server.address, api_key=guarded.key, tls=guarded.tls) as client,
        client.consume("q") as deliveries,
    ):
        for kill in (True, False):
            guarded.server.restart(kill=kill)
            client.enqueue("q", b"after a restart")
            delivery = next(deliveries)
            client.settle([fairlead.Complete(delivery)])
            assert delivery.payload == b"after a restart"


def test_the_asyncio_client_brings_both_as_well(guarded: Guarded) -> None:
    async def work() -> bytes:
        async with await fairlead.aio.connect(
            guarded.server.address, api_key=guarded.key, tls=guarded.tls
        ) as client:
            await client.enqueue("q", b"from a task")
            (delivery,) = await client.claim("q", wait="30s")
            await client.settle([fairlead.Complete(delivery)])
            return delivery.payload

    assert asyncio.run(work()) == b"from a task"


def test_a_key_is_in_no_representation_no_log_and_no_error(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with fairlead.connect(guarded.server.address, api_key=guarded.key, tls=guarded.tls) as client:
        core = client._core
        list(client.browse_batches("q"))
        bulk = core.flight.bulk("browse").core
        shown = [
            client,
            core,
            core.options,
            core.flight,
            core.connections,
            bulk,
            bulk.options,
            bulk._transport,
            guarded.tls,
            bulk._transport._files,
            bulk._transport._api_key,
        ]
        texts = [repr(one) for one in shown]
        for failing in (lambda: client.stats("no-such-queue"), lambda: client.enqueue("q", "no bytes")):  # type: ignore[arg-type]
            with pytest.raises(fairlead.errors.FairleadError) as refused:
                failing()
            texts.append(repr(refused.value) + repr(refused.value.__dict__))
    with pytest.raises(Unauthenticated) as refused:
        fairlead.connect(guarded.server.address, api_key=SECRET, tls=guarded.tls)
    texts += [repr(refused.value) + repr(refused.value.__dict__), caplog.text, guarded.server.log]
    for secret in (guarded.key, guarded.key.split("_", 2)[2], SECRET, "PRIVATE KEY"):
        assert [text for text in texts if secret in text] == []


@pytest.mark.parametrize("wrong", ["", " ", " a", "a ", "a\nb", "schlüssel", "x" * 1001, b"bytes", 7])
def test_what_cannot_be_a_key_is_refused_without_being_shown(wrong: object) -> None:
    with pytest.raises(
        InvalidRequest, match=r"expected api_key to be text .*, got '\(not shown\)'"
    ) as refused:
        fairlead.connect("127.0.0.1:1", api_key=wrong)  # type: ignore[arg-type]
    assert refused.value.got == "(not shown)"


def test_a_key_that_would_travel_in_the_open_is_warned_of(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    Identity(Endpoint("127.0.0.1", 1), None, SECRET)
    Identity(Endpoint("fairlead.example", 1), guarded.tls, SECRET)
    Identity(Endpoint("fairlead.example", 1), None, None)
    assert not caplog.records
    Identity(Endpoint("fairlead.example", 1), None, SECRET)
    assert "the API key travels to fairlead.example:1 unencrypted" in caplog.text
    assert SECRET not in caplog.text


def command(guarded: Guarded, *args: str | Path, **env: str) -> str:
    """In this process, which is quicker. What it printed; raises as `run_command` does."""
    files = guarded.files
    environ = dict.fromkeys((name for name in os.environ if name.startswith("FAIRLEAD_")), None)
    for name, path in {"CA": files.ca, "CERT": files.cert("client"), "KEY": files.key("client")}.items():
        environ[f"FAIRLEAD_CLIENT_TLS_{name}"] = str(path)
    ran = CliRunner(env=environ | env).invoke(
        app, ["--addr", guarded.server.address, *map(str, args)], catch_exceptions=False
    )
    if ran.exit_code:
        raise CommandFailed(ran.exit_code, ran.stderr + ran.stdout)
    return ran.stdout


def test_a_command_takes_its_key_from_a_file_or_the_environment(guarded: Guarded, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.key"
    wrong.write_text(SECRET)
    wrong.chmod(0o600)
    key_file = str(guarded.key_file)
    lists = [
        command(guarded, "queue", "list", "--api-key-file", key_file),
        command(guarded, "--api-key-file", key_file, "queue", "list", FAIRLEAD_API_KEY=SECRET),
        command(guarded, "queue", "list", "--api-key-file", key_file, FAIRLEAD_API_KEY_FILE=str(wrong)),
        command(guarded, "queue", "list", FAIRLEAD_API_KEY=guarded.key),
        command(guarded, "queue", "list", FAIRLEAD_API_KEY_FILE=key_file),
    ]
    assert {"q" in listed for listed in lists} == {True}
    with pytest.raises(CommandFailed, match="expected a valid API key") as refused:
        command(guarded, "queue", "list", "--api-key-file", wrong, FAIRLEAD_API_KEY=guarded.key)
    assert refused.value.code == 11
    assert SECRET not in str(refused.value)


def test_the_doctor_finds_every_door_and_says_when_certificates_end(guarded: Guarded) -> None:
    doors = guarded.server.addresses
    said = command(
        guarded,
        "doctor",
        "--flight",
        doors["flight"],
        "--grpc",
        doors["grpc"],
        "--http",
        doors["http"],
        "-o",
        "json",
        FAIRLEAD_API_KEY=guarded.key,
    )
    checks = {(check["area"], check["name"]): check for check in json.loads(said)["checks"]}
    assert {
        name: checks["server", name]["level"] for name in ("resp", "flight", "grpc", "http", "version")
    } == dict.fromkeys(("resp", "flight", "grpc", "http", "version"), "ok")
    ends = {name: check["found"] for (area, name), check in checks.items() if area == "certificates"}
    assert sorted(ends) == ["authority", "client", "flight", "grpc", "http", "resp"]
    assert all("expires on 20" in found for found in ends.values())


def test_the_doctor_says_what_is_wrong_with_a_door_that_it_cannot_enter(guarded: Guarded) -> None:
    with pytest.raises(CommandFailed) as refused:
        run_command(
            "--addr", guarded.server.address, "doctor", "--grpc", "127.0.0.1:1", "--http", "127.0.0.1:1"
        )
    assert refused.value.code == 1
    assert "the server speaks TLS and this client does not; give tls=" in str(refused.value)
