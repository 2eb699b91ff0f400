"""The command line with arguments, payloads and streams that nobody should give it: it ends with a code, and
without a stack.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import fairlead
from fairlead.cli.app import app
from fairlead.testing.server import ServerProcess, run_server

PATIENCE_S = 60.0
_FAIRLEAD = (sys.executable, "-c", "from fairlead.cli import main; main()")
#: A title, a cleared screen, colours by a single character, text turned round, a bell, a character that rubs
#: out.
FOOLING = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202eevil\u2066\x7f\r\nX"
OBEYED = [char.encode() for char in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\x07", "\x7f")]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server where every text that a client may give is fooling."""
    with run_server(tmp_path_factory.mktemp("watched") / "data", settings={"durability": "os"}) as server:
        with fairlead.connect(server.address) as client:
            client.create_queue("q")
            client.config.set(f"throttle:{FOOLING}:rate", "1000")
            told: dict[str, Any] = {
                "headers": {FOOLING: FOOLING},
                "fairness_key": FOOLING,
                "stream": FOOLING,
                "throttle_keys": [FOOLING],
            }
            client.enqueue("q", FOOLING.encode(), **told)
            (delivery,) = client.claim("q", consumer=FOOLING)
            client.settle([fairlead.Fail(delivery, FOOLING, dead=True)])
            client.enqueue("q", FOOLING.encode(), **told)
        yield server


def environment(server: ServerProcess) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")} | {
        "FAIRLEAD_ADDR": server.address
    }


def run(
    server: ServerProcess, *arguments: str, through: tuple[str, ...] = (), **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """In a process of its own, where the streams are what they are in real life."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(
        [*through, *_FAIRLEAD, *arguments], env=environment(server), timeout=PATIENCE_S, **options
    )


def in_process(address: str | None, *arguments: str) -> Result:
    """Quick; whatever nobody foresaw is raised."""
    known = {"FAIRLEAD_ADDR": address, "FAIRLEAD_DATA": None, "COLUMNS": "200"}
    return CliRunner(env=known).invoke(app, list(arguments), catch_exceptions=False)


def on_a_terminal(server: ServerProcess, *arguments: str) -> bytes:
    """What a terminal would get to see, and obey."""
    ours, theirs = pty.openpty()
    known = environment(server) | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen([*_FAIRLEAD, *arguments], env=known, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        seen = b""
        try:
            while more := os.read(ours, 65_536):
                seen += more
        except OSError:
            pass  # how Linux says that the other end of a terminal is closed
    os.close(ours)
    return seen


COMMANDS = [
    ("queue", "peek", "q"),
    ("queue", "peek", "q.dlq"),
    ("queue", "show", "q"),
    ("queue", "inspect", "q", "ID"),
    ("explain", "q", "ID"),
    ("stats", "-k"),
    ("failures", "q"),
    ("top", "--once", "--interval", "100ms"),
    ("config", "list"),
    ("config", "get", f"throttle:{FOOLING}:rate"),
    ("config", "get", FOOLING),
    ("queue", "show", FOOLING),
    ("queue", FOOLING),
]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: " ".join(command).encode("unicode_escape").decode()[:30]
)
def test_nothing_that_a_client_wrote_is_printed_as_more_than_text(
    watched: ServerProcess, command: tuple[str, ...], form: str
) -> None:
    ran = in_process(watched.address, "-o", form, *_with_id(watched, command))
    assert ran.output
    assert [char for char in OBEYED if char in ran.output.encode()] == []


@pytest.mark.parametrize(
    "command", [("-o", "json", "queue", "peek", "q"), ("queue", "inspect", "q", "ID")], ids=["JSON", "a page"]
)
def test_nothing_that_a_client_wrote_is_obeyed_by_a_terminal(
    watched: ServerProcess, command: tuple[str, ...]
) -> None:
    seen = on_a_terminal(watched, *_with_id(watched, command))
    assert b"evil" in seen
    assert [char for char in OBEYED if char in seen] == []


def _with_id(server: ServerProcess, command: tuple[str, ...]) -> list[str]:
    with fairlead.connect(server.address) as client:
        return [client.peek("q")[0].id if part == "ID" else part for part in command]


def test_what_is_escaped_in_json_is_the_same_to_a_program(watched: ServerProcess) -> None:
    (found,) = json.loads(in_process(watched.address, "-o", "json", "queue", "peek", "q").stdout)
    assert (found["payload"], found["headers"]) == (FOOLING, {FOOLING: FOOLING})


ODD: dict[str, tuple[str | bytes, ...]] = {
    "a name of bytes": ("queue", "show", b"\xff\xfe"),
    "the same in JSON": ("-o", "json", "queue", "show", b"\xff\xfe"),
    "a header of bytes": ("queue", "push", "q", "x", "-H", b"a=\xff"),
    "a key of bytes": ("queue", "push", "q", "x", "--key", b"\xff"),
    "an address of bytes": ("--addr", b"\xff:1", "queue", "list"),
    "an address that is none": ("--addr", "[::1", "queue", "list"),
    "a port that is none": ("--addr", "127.0.0.1:99999999", "queue", "list"),
    "a name like an option": ("queue", "create", "--", "--help"),
    "an empty name": ("queue", "create", ""),
    "a number of 400 digits": ("queue", "peek", "q", "-n", "9" * 400),
    "an intent of 30 digits": ("intent", "cancel", "9" * 30),
    "a time of 400 digits": ("queue", "push", "q", "x", "--delay", "9" * 400 + "d"),
    "a regular expression that never ends": ("queue", "retry", "q", "--error-regex", "(" * 5000, "-y"),
    "a directory as payload": ("queue", "push", "q", "-f", "/tmp"),
    "a payload without end": ("queue", "push", "q", "-f", "/dev/zero"),
    "a drain into a directory": ("queue", "drain", "q", "--to", "/tmp", "-y"),
    "a backup into a device": ("backup", "/dev/null/x"),
    "a backup of bytes": ("backup", b"/tmp/\xff/\xff"),
    "a command of bytes": (b"\xff\xfe",),
    "data in a device": ("--data", "/dev/null", "queue", "list"),
}


@pytest.mark.parametrize("arguments", ODD.values(), ids=ODD.keys())
def test_odd_arguments_are_refused_in_words(
    server: ServerProcess, arguments: tuple[str | bytes, ...]
) -> None:
    said = in_process(
        None if {"--addr", "--data"} & set(arguments) else server.address, *map(os.fsdecode, arguments)
    )
    assert said.exit_code in (1, 2, 3, 4)
    assert said.stderr.startswith(("error: ", '{"error": '))
    assert len(said.stderr) < 2000


@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [
        (("queue", "list"), "1>&-", 0),
        (("queue", "push", "nowhere", "-"), "0>&-", 4),
        (("queue", "drain", "q"), "0>&- 1>&- 2>&-", 2),
    ],
    ids=["stdout", "stdin", "all"],
)
def test_a_command_whose_streams_are_closed_does_its_work(
    server: ServerProcess, arguments: tuple[str, ...], closed: str, code: int
) -> None:
    said = run(server, *arguments, through=("sh", "-c", f'exec "$0" "$@" {closed}'))
    assert said.returncode == code, said.stderr
    assert b"Traceback" not in said.stderr


def test_a_full_disk_under_the_output_is_told(server: ServerProcess) -> None:
    with Path("/dev/full").open("wb") as full:
        said = run(server, "queue", "list", stdout=full)
    assert said.returncode == 1
    assert b"No space left on device" in said.stderr
    assert b"Traceback" not in said.stderr


def test_a_payload_of_any_bytes_goes_in_and_out_unchanged(own_server: ServerProcess, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 40
    file = tmp_path / "payload"
    file.write_bytes(payload)
    assert run(own_server, "queue", "push", "q", "-f", str(file)).returncode == 0
    with file.open("rb") as opened:
        assert run(own_server, "queue", "push", "q", "-", stdin=opened).returncode == 0
    with fairlead.connect(own_server.address) as client:
        assert [delivery.payload for delivery in client.claim("q", limit=5)] == [payload, payload]
