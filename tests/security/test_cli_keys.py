"""`fairlead key` on a data directory and against a server that asks for keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.cli import confirm, keys
from fairlead.cli.key_arguments import read_grant_arguments, show_grants
from fairlead.clock import SystemClock
from fairlead.errors import InvalidRequest, Unauthenticated
from fairlead.model.access import EVERY_RIGHT, read_grants
from fairlead.testing import ServerProcess, run_server
from tests.cli.conftest import Commands, Opener, Ran

DAY_MS = 24 * 60 * 60 * 1000


def secret_of(cli: Commands, *args: str) -> str:
    """The secret alone on stdout, and the word that it is shown once on stderr."""
    ran = cli("key", "create", *args)
    assert ran.code == 0, ran.err
    assert "not shown again" in ran.err
    (line,) = ran.lines
    assert line not in ran.err
    return line


def test_a_key_is_made_and_its_secret_printed_alone_and_once(cli: Commands, broker: Opener) -> None:
    secret = secret_of(cli, "shop", "--grant", "produce,consume:orders.*", "-g", "redrive:orders.eu")
    with broker() as opened:
        record = opened.key_ring.authenticate(secret)
    assert (record.name, record.grants) == (
        "shop",
        read_grants(["produce:orders.*", "consume:orders.*", "redrive:orders.eu"]),
    )
    (listed,) = cli.json("key", "list")
    assert listed["id"] == secret.split("_")[1]
    assert "secret" not in listed
    assert "digest" not in listed


def test_json_has_the_secret_and_nothing_is_said_beside_it(cli: Commands) -> None:
    before = SystemClock().now_ms()
    made = cli.json("key", "create", "shop", "--all", "--expires", "30d")
    after = SystemClock().now_ms()
    assert made["secret"].startswith(f"fl_{made['id']}_")
    assert made["grants"] == sorted(map(str, EVERY_RIGHT))
    assert before <= made["created_at"] <= after
    assert before <= made["expires_at"] - 30 * DAY_MS <= after


def test_an_end_may_be_a_date(cli: Commands) -> None:
    assert cli.json("key", "create", "k", "--expires", "2130-12-31")["expires_at"] == 5080579200000
    assert (
        cli.json("key", "create", "k", "--expires", "2130-12-31T01:00:00+01:00")["expires_at"]
        == 5080579200000
    )
    for wrong in ("2130-13-31", "2000-01-01", "soon", "0s"):
        assert cli("key", "create", "k", "--expires", wrong).code in (2, 3)
    assert len(cli.json("key", "list")) == 2


def test_a_secret_goes_to_a_file_that_only_its_owner_can_read(
    cli: Commands, broker: Opener, tmp_path: Path
) -> None:
    file = tmp_path / "shop.key"
    before = os.umask(0)
    try:
        ran = cli.ok("key", "create", "shop", "--to", str(file))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().strip()
    assert secret not in ran.out
    with broker() as opened:
        assert opened.key_ring.authenticate(secret).name == "shop"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_no_key_is_made_when_its_secret_could_not_be_written(cli: Commands, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("another secret")
    assert cli("key", "create", "shop", "--to", str(taken)).code == 1
    assert cli("key", "create", "shop", "--to", str(tmp_path / "nowhere" / "key")).code == 1
    assert taken.read_text() == "another secret"
    assert cli.json("key", "list") == []


def test_a_secret_that_cannot_be_written_after_all_is_printed(
    cli: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairlead.server.secret_file.os.link", fails)
    ran = cli("key", "create", "shop", "--to", str(tmp_path / "key"))
    assert ran.code == 1
    assert ran.out.startswith("fl_")


def test_a_long_list_of_keys_is_cut_and_says_so(cli: Commands, broker: Opener) -> None:
    with broker() as opened:
        for number in range(205):
            opened.keys.create(f"{'ab'[number % 2]}{number}", ["produce:q"])
    lines = cli.ok("key", "list").lines
    assert len(lines) == 202
    assert lines[-1] == "5 more; list them with --limit or a PREFIX of their names"
    assert len(cli.ok("key", "list", "--limit", "300").lines) == 206
    assert len(cli.ok("key", "list", "a").lines) == 104
    assert (len(cli.json("key", "list")), len(cli.json("key", "list", "b"))) == (205, 102)


def test_keys_are_listed_with_their_rights_use_and_end(
    cli: Commands, broker: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secret_of(cli, "shop", "--grant", "produce,consume:orders.*", "--expires", "2h")
    secret_of(cli, "ops", "--all")
    with broker() as opened:
        opened.key_ring.authenticate(secret)
    shop, ops = cli.ok("key", "list").lines[1:]
    assert shop.split()[1:] == [
        "shop",
        "produce,consume:orders.*",
        shop.split()[3],
        "ago",
        "in",
        shop.split()[-1],
    ]
    assert ops.split()[1:] == ["ops", "all:*", "never", "never"]
    later = SystemClock().now_ms() + 3 * 60 * 60 * 1000
    monkeypatch.setattr(keys, "now_ms", lambda: later)
    monkeypatch.setattr("fairlead.cli.output.now_ms", lambda: later)
    assert "expired 1h" in cli.ok("key", "list").lines[1]
    assert "expired 1h" in cli.ok("key", "show", "shop").out


def test_a_key_is_meant_by_its_id_the_beginning_of_it_or_its_name(cli: Commands) -> None:
    first = cli.json("key", "create", "shop")
    for given in (first["id"], first["id"][:4], "shop"):
        assert cli.json("key", "show", given)["id"] == first["id"]
    second = cli.json("key", "create", "shop")
    ran = cli("key", "show", "shop")
    assert ran.code == 2
    assert first["id"] in ran.err
    assert second["id"] in ran.err
    ran = cli("key", "show", "nobody")
    assert ran.code == 4
    assert "fairlead key list" in ran.err
    assert cli("key", "revoke", "", "--yes").code == 4


def test_rights_are_given_and_taken_beside_the_others(cli: Commands) -> None:
    secret_of(cli, "shop", "--grant", "produce,consume:orders")
    said = cli.ok("key", "grant", "shop", "redrive:orders", "--remove", "consume:orders").out
    assert "has produce,redrive:orders" in said
    assert cli.json("key", "grant", "shop", "all:shop/*", "--only")["grants"] == [
        f"{right}:shop/*"
        for right in sorted(["produce", "consume", "admin", "read-payload", "redrive", "quarantine"])
    ]
    assert "has no rights" in cli.ok("key", "grant", "shop", "--only").out


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["shop"], 2),
        (["shop", "--only", "--remove", "produce:orders"], 2),
        (["shop", "--remove", "produce:orders.eu"], 3),
        (["shop", "write:orders"], 3),
        (["shop", "produce"], 3),
        (["shop", "produce,:orders"], 3),
        (["nobody", "produce:orders"], 4),
    ],
)
def test_a_slip_in_a_grant_changes_nothing(cli: Commands, args: list[str], code: int) -> None:
    secret_of(cli, "shop", "--grant", "produce:orders")
    assert cli("key", "grant", *args).code == code
    assert cli.json("key", "show", "shop")["grants"] == ["produce:orders"]


def test_what_is_shown_of_rights_can_be_typed_again() -> None:
    for texts in (
        ["produce:a", "consume:a", "admin:b.*"],
        [*map(str, EVERY_RIGHT)],
        ["redrive:*", "produce:p/*"],
        ["all:x", "produce:y"],
    ):
        grants = read_grant_arguments(texts)
        assert read_grant_arguments(show_grants([str(grant) for grant in grants]).split()) == grants
    with pytest.raises(InvalidRequest):
        read_grant_arguments(["all"])


def test_a_key_is_rotated_into_the_file_it_was_in(cli: Commands, broker: Opener, tmp_path: Path) -> None:
    file = tmp_path / "shop.key"
    cli.ok("key", "create", "shop", "--grant", "produce:orders", "--to", str(file))
    old = file.read_text().strip()
    assert "is no longer valid" in cli.ok("key", "rotate", "shop", "--to", str(file)).out
    new = file.read_text().strip()
    with broker() as opened:
        assert opened.key_ring.authenticate(new).grants == read_grants(["produce:orders"])
        with pytest.raises(Unauthenticated):
            opened.key_ring.authenticate(old)
    kept = cli("key", "rotate", "shop", "--keep", "1h")
    assert "stays valid for 1h" in kept.err
    with broker() as opened:
        assert opened.key_ring.authenticate(new).expires_ms
        assert opened.key_ring.authenticate(kept.out.strip()).grants


def test_revoking_asks_and_says_what_the_key_is(
    cli: Commands, broker: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secret_of(cli, "shop", "--grant", "produce:orders")
    without_terminal = cli("key", "revoke", "shop")
    assert without_terminal.code == 2
    assert "produce:orders, last used never" in without_terminal.err
    monkeypatch.setattr(confirm, "at_terminal", lambda: True)
    assert cli("key", "revoke", "shop", input="n\n").code == 1
    with broker() as opened:
        opened.key_ring.authenticate(secret)
    asked = cli("key", "revoke", "shop", input="y\n")
    assert asked.code == 0
    assert "'shop': produce:orders, last used" in asked.err
    assert "ago" in asked.err
    with broker() as opened, pytest.raises(Unauthenticated):
        opened.key_ring.authenticate(secret)


def test_revoking_the_last_key_with_every_right_is_said_before(cli: Commands) -> None:
    secret_of(cli, "first", "--all")
    assert "no other key has every right" in cli("key", "revoke", "first").err
    secret_of(cli, "second", "--all")
    assert "no other key" not in cli("key", "revoke", "first").err


def test_whoever_holds_the_directory_needs_no_key(cli: Commands) -> None:
    cli.ok("config", "set", "a", "b")
    assert "may do everything" in cli.ok("key", "show").out


def test_where_a_server_asks_for_no_key_it_says_so(cli: Commands, tmp_path: Path) -> None:
    with run_server(tmp_path / "data", settings={"durability": "os"}) as server:
        ran = cli("--addr", server.address, "key", "show")
    assert (ran.code, ran.err) == (0, "")
    assert "the server asks for none" in ran.out


# The first key


def test_a_lost_first_key_is_made_again_from_the_directory(cli: Commands, broker: Opener, data: Path) -> None:
    cli.ok("config", "set", "a", "b")
    first = cli.json("key", "bootstrap")
    file = data / "bootstrap.key"
    assert first["file"] == str(file)
    old = file.read_text().strip()
    assert cli("key", "bootstrap").code == 2, "there is one, so it asks"
    assert old == file.read_text().strip()
    cli.ok("key", "bootstrap", "--yes")
    with broker() as opened:
        assert opened.key_ring.authenticate(file.read_text().strip()).grants == read_grants(EVERY_RIGHT)
        with pytest.raises(Unauthenticated):
            opened.key_ring.authenticate(old)
        assert [record.verb for record in opened.audit.read()] == [
            "keys.bootstrap",
            "keys.bootstrap",
            "config.set",
        ]
        assert opened.audit.read()[0].who.startswith("local:")


def test_the_first_key_is_made_only_with_the_directory_in_hand(cli: Commands) -> None:
    ran = cli("--addr", "127.0.0.1:1", "key", "bootstrap")
    assert ran.code == 2
    assert "--data DIR" in ran.err


# At a server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(
        tmp_path_factory.mktemp("cli-keys") / "data", settings={"durability": "os", "auth.mode": "keys"}
    ) as running:
        yield running


@pytest.fixture
def at_server(server: ServerProcess, cli: Commands) -> AtServer:
    return AtServer(cli, server)


class AtServer:
    def __init__(self, cli: Commands, server: ServerProcess) -> None:
        self._cli = cli
        self._address = server.address
        self.bootstrap = server.data / "bootstrap.key"

    def __call__(self, *args: str, key: Path | None = None) -> Ran:
        given = {
            "FAIRLEAD_DATA": None,
            "FAIRLEAD_ADDR": self._address,
            "FAIRLEAD_API_KEY_FILE": str(key or self.bootstrap),
        }
        # A busy machine may take longer to answer than a person waits.
        return self._cli("--wait", "10s", *args, env=given)


def test_a_scoped_admin_works_from_the_shell_within_its_rights(at_server: AtServer, tmp_path: Path) -> None:
    team, worker = tmp_path / "team.key", tmp_path / "worker.key"
    assert (
        at_server(
            "key",
            "create",
            "team",
            "--grant",
            "admin,produce,consume:team.*",
            "--expires",
            "1d",
            "--to",
            str(team),
        ).code
        == 0
    )
    assert at_server("queue", "create", "team.jobs", key=team).code == 0
    assert at_server("queue", "create", "jobs", key=team).code == 12
    assert (
        at_server(
            "key",
            "create",
            "worker",
            "-g",
            "consume:team.jobs",
            "--expires",
            "1h",
            "--to",
            str(worker),
            key=team,
        ).code
        == 0
    )
    assert (
        at_server("key", "create", "worker", "-g", "redrive:team.jobs", "--expires", "1h", key=team).code
        == 12
    )
    assert at_server("key", "create", "worker", "-g", "consume:team.jobs", key=team).code == 3, (
        "it would outlive its maker"
    )
    assert at_server("key", "show", "-o", "json", key=worker).json()["name"] == "worker"
    assert {key["name"] for key in at_server("key", "list", "-o", "json", key=team).json()} == {
        "team",
        "worker",
    }
    assert at_server("key", "revoke", "bootstrap", "--yes", key=team).code == 4, "not there for it"
    assert at_server("audit", key=team).code == 12
    assert at_server("key", "revoke", "worker", "--yes", key=team).code == 0
    refused = at_server("queue", "list", key=worker)
    assert refused.code == 11
    assert "revoked" in refused.err


def test_a_key_rotates_itself_from_the_shell(at_server: AtServer, tmp_path: Path) -> None:
    own = tmp_path / "own.key"
    at_server("key", "create", "own", "-g", "produce:x", "--to", str(own))
    before = own.read_text()
    assert at_server("key", "rotate", "own", "--to", str(own), key=own).code == 0
    assert own.read_text() != before
    assert at_server("key", "show", key=own).code == 0


def test_a_client_in_python_works_with_the_key_of_a_file(server: ServerProcess) -> None:
    with fairlead.connect(
        server.address, api_key=(server.data / "bootstrap.key").read_text().strip()
    ) as client:
        made = client.keys.create("py", ["produce:a", "consume:a"], expires_in="1h")
        assert client.keys.change_grants(made.info.id, remove=["consume:a"]).grants == ("produce:a",)
        assert client.keys.rotate(made.info.id, keep="1m").info.name == "py"
        assert client.audit.read(limit=1)[0].verb == "keys.rotate"


def test_a_first_key_that_was_rotated_is_still_over_after_a_restart(cli: Commands, tmp_path: Path) -> None:
    with run_server(tmp_path / "data", settings={"durability": "os", "auth.mode": "keys"}) as server:
        old, new = server.data / "bootstrap.key", tmp_path / "new.key"
        at_server = AtServer(cli, server)
        assert at_server("key", "rotate", "bootstrap", "--to", str(new)).code == 0
        server.restart()
        assert at_server("key", "list", key=new).code == 0
        assert at_server("key", "list", key=old).code == 11
        assert "is not taken; remove the file" in server.log
