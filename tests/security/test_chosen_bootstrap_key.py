"""A bootstrap key that the operator chose, in a file or in the environment, through every door and every start."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import fila
import pytest

import fairlead
import fairlead.aio
from fairlead.cli import security_checks
from fairlead.config import AuthSettings
from fairlead.config.server import BOOTSTRAP_KEY_VARIABLE
from fairlead.errors import SettingInvalid, StoreFull, Unauthenticated
from fairlead.model.access import EVERY_RIGHT
from fairlead.server.bootstrap import BOOTSTRAP, BootstrapOutcome, key_in_environment, prepare_bootstrap_key
from fairlead.testing import ServerDidNotStart, ServerProcess, run_server, stop_before
from tests.security.callers import PATIENCE_S, CommandFailed, run_command
from tests.security.scene import Scene

KEYS = AuthSettings("keys")
CHOSEN = "a key, that I chose: \"${x}\"\\ %41 ~ ='1'"
OTHER = "f" * 64
#: Every printable character that is there.
ALL = "".join(map(chr, range(0x21, 0x7F)))

GOOD = {
    "the shortest": "k" * 32,
    "the longest": "k" * 256,
    "spaces inside": CHOSEN,
    "every character": ALL,
    "like ours": "fl_aaaaaaaaaaaa_" + "b" * 44,
}
BAD = {
    "empty": "",
    "too short": "CANARY" + "k" * 25,
    "too long": "CANARY" + "k" * 251,
    "not ASCII": "CANARY-schlüssel" + "k" * 32,
    "a tab inside": "CANARY\t" + "k" * 32,
    "a line break inside": "CANARY\n" + "k" * 32,
    "a space before": " CANARY" + "k" * 32,
    "a space behind": "CANARY" + "k" * 32 + " ",
}


def key_file(folder: Path, content: bytes) -> Path:
    file = folder / "bootstrap.key"
    file.write_bytes(content)
    file.chmod(0o600)
    return file


def refused(scene: Scene, secret: str) -> None:
    with pytest.raises(Unauthenticated):
        scene.broker.key_ring.authenticate(secret)


# What may be one


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("secret", GOOD.values(), ids=GOOD)
def test_a_chosen_key_is_taken_from_a_file(scene: Scene, tmp_path: Path, secret: str, ending: bytes) -> None:
    file = key_file(tmp_path, secret.encode() + ending)
    assert prepare_bootstrap_key(scene.broker, file) is BootstrapOutcome.KNOWN
    record = scene.broker.key_ring.authenticate(secret)
    assert (record.name, record.grants) == (BOOTSTRAP, tuple(sorted(EVERY_RIGHT)))
    (shown,) = scene.broker.keys.list()
    assert secret not in repr(shown) + repr(record)
    assert file.read_bytes() == secret.encode() + ending


@pytest.mark.parametrize("secret", GOOD.values(), ids=GOOD)
def test_a_chosen_key_is_taken_from_the_environment(scene: Scene, tmp_path: Path, secret: str) -> None:
    given = key_in_environment({BOOTSTRAP_KEY_VARIABLE: secret}, KEYS)
    assert prepare_bootstrap_key(scene.broker, tmp_path / "none", given) is BootstrapOutcome.KNOWN
    assert scene.broker.key_ring.authenticate(secret).name == BOOTSTRAP
    assert list(tmp_path.iterdir()) == [], "no other key is made"


@pytest.mark.parametrize("secret", [*BAD.values(), *(f"CANARY{'k' * 32}{end}" for end in ("\n\n", "\n "))])
def test_what_is_no_key_in_a_file_is_refused_without_being_quoted(
    scene: Scene, tmp_path: Path, secret: str
) -> None:
    with pytest.raises(SettingInvalid) as error:
        prepare_bootstrap_key(scene.broker, key_file(tmp_path, secret.encode()))
    message = error.value.message
    assert "expected API key to be 32 to 256 printable ASCII characters" in message
    assert "openssl rand -hex 32" in message
    assert "CANARY" not in message + repr(error.value.__dict__)
    assert scene.broker.keys.list() == []


@pytest.mark.parametrize("secret", [*BAD.values(), f"CANARY{'k' * 32}\n"])
def test_what_is_no_key_in_the_environment_is_refused_without_being_quoted(secret: str) -> None:
    with pytest.raises(SettingInvalid) as error:
        key_in_environment({BOOTSTRAP_KEY_VARIABLE: secret}, KEYS)
    assert error.value.path == BOOTSTRAP_KEY_VARIABLE
    assert "openssl rand -hex 32" in error.value.message
    assert "CANARY" not in error.value.message + repr(error.value.__dict__)


def test_a_variable_that_would_have_no_effect_is_refused() -> None:
    environ = {BOOTSTRAP_KEY_VARIABLE: OTHER}
    assert key_in_environment({}, AuthSettings()) is None
    with pytest.raises(SettingInvalid, match=r'expected auth.mode = "keys" beside it'):
        key_in_environment(environ, AuthSettings("off"))
    with pytest.raises(SettingInvalid, match=r"either it or auth\.bootstrap_key_file"):
        key_in_environment(environ, AuthSettings("keys", "/run/secrets/key"))


def test_the_doctor_finds_what_a_server_would_refuse(tmp_path: Path) -> None:
    def asked(key: str, mode: str) -> Mapping[str, str]:
        return {BOOTSTRAP_KEY_VARIABLE: key, "FAIRLEAD_AUTH_MODE": mode}

    (bad,) = security_checks.settings_here(tmp_path, asked("CANARY", "keys"))
    assert (bad.level, "CANARY" in bad.found) == ("bad", False)
    (off,) = security_checks.settings_here(tmp_path, asked(OTHER, "off"))
    assert off.level == "bad"
    (well,) = security_checks.settings_here(tmp_path, asked(OTHER, "keys"))
    assert (well.level, OTHER in well.found) == ("ok", False)


# Who gets in


def test_the_former_key_stops_working_and_others_stay(scene: Scene, tmp_path: Path) -> None:
    made = scene.key("produce:q")
    for secret, former in ((CHOSEN, OTHER), (OTHER, CHOSEN), (CHOSEN, OTHER)):
        assert prepare_bootstrap_key(scene.broker, tmp_path / "none", secret) is BootstrapOutcome.KNOWN
        assert scene.broker.key_ring.authenticate(secret).name == BOOTSTRAP
        refused(scene, former)
    assert scene.broker.key_ring.authenticate(made.secret).key_id == made.info.id
    assert len(scene.broker.keys.list()) == 2


def test_a_key_of_ours_and_a_chosen_one_replace_each_other(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.key"
    prepare_bootstrap_key(scene.broker, file)
    ours = file.read_text().strip()
    prepare_bootstrap_key(scene.broker, file, CHOSEN)
    refused(scene, ours)
    assert prepare_bootstrap_key(scene.broker, file) is BootstrapOutcome.KNOWN
    assert scene.broker.key_ring.authenticate(ours).name == BOOTSTRAP
    refused(scene, CHOSEN)


def test_a_start_that_cannot_write_the_new_key_leaves_the_former_one(scene: Scene, tmp_path: Path) -> None:
    prepare_bootstrap_key(scene.broker, tmp_path / "none", CHOSEN)
    with (
        stop_before(scene.broker, lambda step: True, StoreFull("the disk", 0, 1)),
        pytest.raises(StoreFull),
    ):
        prepare_bootstrap_key(scene.broker, tmp_path / "none", OTHER)
    assert scene.broker.key_ring.authenticate(CHOSEN).name == BOOTSTRAP
    refused(scene, OTHER)


@pytest.mark.parametrize("near", [CHOSEN[:-1], CHOSEN + "x", CHOSEN.upper(), CHOSEN.replace(" ", "  ", 1)])
def test_what_is_nearly_the_key_is_refused(scene: Scene, tmp_path: Path, near: str) -> None:
    prepare_bootstrap_key(scene.broker, tmp_path / "none", CHOSEN)
    refused(scene, near)


# Through real doors


def by_client(server: ServerProcess, key: str) -> None:
    with fairlead.connect(server.address, api_key=key) as client:
        client.queues()


def by_aio(server: ServerProcess, key: str) -> None:
    async def call() -> None:
        async with await fairlead.aio.connect(server.address, api_key=key) as client:
            await client.queues()

    asyncio.run(call())


def by_fila(server: ServerProcess, key: str) -> None:
    with fila.Client(server.addresses["grpc"], api_key=key) as client:
        try:
            client.enqueue("no-such-queue", None, b"hello")
        except fila.QueueNotFoundError:
            return
    raise AssertionError("expected to be told that there is no such queue")


def by_metrics(server: ServerProcess, key: str) -> None:
    asked = urllib.request.Request(
        f"http://{server.addresses['http']}/metrics", headers={"Authorization": f"Bearer {key}"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asked, timeout=PATIENCE_S) as answer:
        assert b"fairlead_build_info" in answer.read()


def by_command(server: ServerProcess, key: str) -> None:
    run_command("--addr", server.address, "queue", "list", env={"FAIRLEAD_API_KEY": key})


def by_key_file(server: ServerProcess, key: str) -> None:
    file = key_file(server.data.parent, f"{key}\n".encode())
    run_command("--addr", server.address, "--api-key-file", str(file), "queue", "list")


CALLERS: dict[str, Callable[[ServerProcess, str], None]] = {
    "client": by_client,
    "aio": by_aio,
    "fila": by_fila,
    "metrics": by_metrics,
    "command": by_command,
    "key file": by_key_file,
}
REFUSED = (Unauthenticated, fila.RPCError, urllib.error.HTTPError, CommandFailed)
IN_PROCESS = ("client", "fila", "metrics")


def let_in(server: ServerProcess, key: str) -> None:
    for caller in IN_PROCESS:
        CALLERS[caller](server, key)


def kept_out(server: ServerProcess, key: str) -> None:
    for caller in IN_PROCESS:
        with pytest.raises(REFUSED):
            CALLERS[caller](server, key)


def all_doors(data: Path, **given: object) -> AbstractContextManager[ServerProcess]:
    settings = {"durability": "os", "auth.mode": "keys", **given.pop("settings", {})}  # type: ignore[dict-item]
    return run_server(data, grpc=True, http=True, settings=settings, **given)  # type: ignore[arg-type]


@contextmanager
def served(data: Path, key: str) -> Iterator[ServerProcess]:
    with all_doors(data, environment={BOOTSTRAP_KEY_VARIABLE: key}) as server:
        yield server


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with served(tmp_path_factory.mktemp("chosen") / "data", CHOSEN) as server:
        yield server


@pytest.mark.parametrize("caller", CALLERS)
def test_every_client_gets_in_with_the_chosen_key_and_with_no_other(
    spaced: ServerProcess, caller: str
) -> None:
    CALLERS[caller](spaced, CHOSEN)
    with pytest.raises(REFUSED):
        CALLERS[caller](spaced, OTHER)


def test_the_key_is_listed_and_audited_like_one_of_ours_and_shown_nowhere(spaced: ServerProcess) -> None:
    with fairlead.connect(spaced.address, api_key=CHOSEN) as client:
        client.create_queue("orders")
        (info,) = client.keys.list()
        (entry,) = [entry for entry in client.audit.read() if entry.verb == "create_queue"]
        made = client.keys.create("shop", ["produce:orders"])
    assert (info.name, set(info.grants)) == (BOOTSTRAP, set(map(str, EVERY_RIGHT)))
    assert (entry.who, entry.name) == (info.id, BOOTSTRAP)
    by_client(spaced, made.secret)
    environ = {"FAIRLEAD_API_KEY": CHOSEN}
    listed = run_command("--addr", spaced.address, "key", "list", env=environ)
    assert info.id in listed
    assert CHOSEN not in listed + spaced.log + spaced.out
    files = [file for file in spaced.data.rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if CHOSEN.encode() in file.read_bytes()] == []
    assert not (spaced.data / "bootstrap.key").exists()


def test_a_key_in_the_environment_holds_over_kills_until_it_is_changed_or_revoked(tmp_path: Path) -> None:
    with served(tmp_path / "data", CHOSEN) as server:
        let_in(server, CHOSEN)
        server.restart(kill=True)
        let_in(server, CHOSEN)
        server.environment[BOOTSTRAP_KEY_VARIABLE] = OTHER
        server.restart(kill=True)
        let_in(server, OTHER)
        kept_out(server, CHOSEN)
        del server.environment[BOOTSTRAP_KEY_VARIABLE]
        server.restart(kill=True)
        let_in(server, OTHER)
        kept_out(server, CHOSEN)
        with fairlead.connect(server.address, api_key=OTHER) as client:
            client.keys.create("somebody else", map(str, EVERY_RIGHT))
            client.keys.revoke(client.keys.show().id)
        server.environment[BOOTSTRAP_KEY_VARIABLE] = OTHER
        server.restart(kill=True)
        kept_out(server, OTHER)
        assert "was revoked or rotated and is not taken" in server.log
        assert CHOSEN not in server.log
        assert OTHER not in server.log


def test_a_key_in_a_file_holds_over_kills_until_it_is_changed(tmp_path: Path) -> None:
    file = key_file(tmp_path, f"{CHOSEN}\n".encode())
    with all_doors(tmp_path / "data", settings={"auth.bootstrap_key_file": file}) as server:
        let_in(server, CHOSEN)
        key_file(tmp_path, OTHER.encode())
        server.restart(kill=True)
        let_in(server, OTHER)
        kept_out(server, CHOSEN)
        file.unlink()
        server.restart(kill=True)
        let_in(server, OTHER)
        assert not file.exists(), "there is somebody with every right"


def test_a_key_file_of_ours_beside_the_variable_is_warned_of(tmp_path: Path) -> None:
    with all_doors(tmp_path / "data") as server:
        file = server.data / "bootstrap.key"
        ours = file.read_text().strip()
        server.environment[BOOTSTRAP_KEY_VARIABLE] = CHOSEN
        server.restart(kill=True)
        let_in(server, CHOSEN)
        kept_out(server, ours)
        assert "the bootstrap key comes from the environment" in server.log
        assert str(file) in server.log


@pytest.mark.parametrize("by", ["file", "environment"])
def test_a_server_does_not_start_with_what_is_no_key_and_quotes_it_nowhere(tmp_path: Path, by: str) -> None:
    given: dict[str, object] = {"environment": {BOOTSTRAP_KEY_VARIABLE: BAD["too short"]}}
    if by == "file":
        file = key_file(tmp_path, BAD["too short"].encode())
        given = {"settings": {"auth.bootstrap_key_file": file}}
    with pytest.raises(ServerDidNotStart) as refused, all_doors(tmp_path / "data", **given):
        pass
    error = json.loads(refused.value.log.splitlines()[-1])["error"]
    assert (refused.value.code, error["code"]) == (3, "setting_invalid")
    assert "32 to 256 printable ASCII characters" in error["message"]
    assert "CANARY" not in refused.value.log
