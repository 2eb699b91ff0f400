"""Canaries in everything that users send, and a search for them in everything that comes out where nobody
asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fila
import grpc
import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import fairlead
import fairlead.aio
from fairlead import DeadFilter, DeliveryRef, Extend, Fail, NewMessage
from fairlead.config import ServerSettings
from fairlead.middleware.stack import Layers
from fairlead.model.access import KeyInfo, NewKey
from fairlead.model.limits import MAX_CARRY_BYTES, MAX_PAYLOAD_BYTES
from fairlead.model.message import Message
from fairlead.testing import open_in_memory
from fairlead.testing.server import ServerProcess, run_server
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.settle import Settle
from tests.doors.flight.raw import RawChannel, put
from tests.doors.http.collector import running_collector
from tests.turns import turn

PAYLOAD, HEADER, CARRY = "canary-in-a-payload", "canary-in-a-header", "canary-in-a-carry"
SCRIPT, HOOK_ERROR = "canary-in-a-script", "canary-in-the-error-of-a-hook"
FAILURE, CONFIG = "canary-in-an-error-text", "canary-in-the-configuration"
WRONG_KEY = "fl_aaaaaaaaaaaa_" + "WrongCanary" + "A" * 32
HEADERS = {"note": HEADER, "who": "somebody"}
ON_ENQUEUE = f"""-- {SCRIPT}
function on_enqueue(msg)
  if msg.headers.fail then error("{HOOK_ERROR} " .. msg.headers.note) end
  return {{ fairness_key = msg.headers.who }}
end"""
ON_FAILURE = f"""function on_failure(msg) error("{HOOK_ERROR}") end"""
CANARIES = (PAYLOAD, HEADER, CARRY, SCRIPT, HOOK_ERROR, FAILURE, CONFIG, WRONG_KEY)

PATIENCE_S = 60
encode = msgspec.msgpack.encode


@dataclass
class Spill:
    """What came out: by the server itself, and what its callers were told when something was refused."""

    places: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def refused(
        self, what: str, kind: type[BaseException] | tuple[type[BaseException], ...] = Exception
    ) -> Iterator[None]:
        """The error as a program shows it: its text, and the whole traceback."""
        try:
            yield
        except kind as error:
            self.refusals[what] = (
                f"{error!r}\n{''.join(traceback.format_exception(error))}\n{getattr(error, 'fields', '')}"
            )
        else:
            raise AssertionError(f"expected {what} to be refused")


@pytest.fixture(scope="module")
def spill(tmp_path_factory: pytest.TempPathFactory) -> Spill:
    data = tmp_path_factory.mktemp("secrets") / "data"
    found = Spill()
    with running_collector() as collector:
        settings = {
            "durability": "os",
            "auth.mode": "keys",
            "log.level": "debug",
            "tracing.otlp_endpoint": collector.endpoint,
        }
        with run_server(data, grpc=True, http=True, settings=settings) as server:
            key = (data / "bootstrap.key").read_text().strip()
            found.keys.append(key)
            work_as_usual(server, key, found)
            be_refused(server, key, found)
            speak_nonsense(server, key, found)
            found.places["metrics"] = get(server, "/metrics", key)
            found.places["index"] = get(server, "/", key)
            assert server.stop() == 0
            found.places["stderr"], found.places["stdout"] = server.log, server.out
        found.places["spans"] = str(collector._received)
    found.places["files"] = "\n".join(
        file.read_bytes().decode("latin-1")
        for file in sorted(data.iterdir())
        if file.is_file() and file.name != "bootstrap.key"
    )
    return found


def work_as_usual(server: ServerProcess, key: str, found: Spill) -> None:
    with fairlead.connect(server.address, api_key=key) as client:
        client.create_queue("q", on_enqueue=ON_ENQUEUE, on_failure=ON_FAILURE, retry="none")
        client.config.set("note", CONFIG)
        client.enqueue("q", PAYLOAD.encode(), headers=HEADERS)
        client.enqueue_many("q", [NewMessage(PAYLOAD.encode(), HEADERS | {"fail": "yes"})] * 5)
        for delivery in client.claim("q", limit=3):
            client.settle(
                [Extend(delivery, "30s", carry=CARRY.encode()), Fail(delivery, error=f"{FAILURE} {PAYLOAD}")]
            )
        client.quarantine("q", [NewMessage(PAYLOAD.encode(), HEADERS)], error=FAILURE)
        message_id = client.peek("q.dlq")[0].id
        client.find(message_id)
        client.explain(message_id)
        client.explain_queue("q")
        client.stats("q", keys=True)
        client.failure_metrics("q")
        client.redrive("q.dlq", filter=DeadFilter(header=("note", HEADER), error=FAILURE))
        turn(
            client,
            "me",
            enqueue={"q": [NewMessage(PAYLOAD.encode(), HEADERS)]},
            claim={"queue": "q", "limit": 1},
        )
        made = client.keys.create("reader", ["consume:other"])
        found.keys.append(made.secret)
        found.places["audit"] = str(client.audit.read(limit=1000))
        found.places["queues, keys"] = str(client.queues()) + str(client.keys.list())
        found.places["messages as they print"] = str(
            [client.peek("q"), client.peek("q.dlq"), client.claim("q", limit=10), made]
        )
        client.drain("q")
    with fila.Client(server.addresses["grpc"], api_key=key) as theirs:
        theirs.enqueue("q", HEADERS, PAYLOAD.encode())
        message = next(iter(theirs.consume("q")))
        theirs.nack("q", message.id, FAILURE)


def be_refused(server: ServerProcess, key: str, found: Spill) -> None:
    secret = PAYLOAD.encode()
    with fairlead.connect(server.address, api_key=key) as client:
        for what, call in wrong_calls(client).items():
            with found.refused(what, fairlead.errors.FairleadError):
                call()
        with found.refused("a payload that is too large"):
            client.enqueue("q", secret * (MAX_PAYLOAD_BYTES // len(secret) + 1), headers=HEADERS)
    reader = found.keys[1]
    with fairlead.connect(server.address, api_key=reader) as client:
        with found.refused("a right that is missing", fairlead.errors.Forbidden):
            client.enqueue("q", secret, headers=HEADERS)
        with found.refused("a right that is missing, in an exchange", fairlead.errors.Forbidden):
            turn(client, "me", enqueue={"q": [NewMessage(secret, HEADERS)]})
    with (
        fila.Client(server.addresses["grpc"], api_key=reader) as theirs,
        found.refused("a right that is missing, at the fila door"),
    ):
        theirs.enqueue("q", HEADERS, secret)
    with (
        found.refused("a wrong key", fairlead.errors.Unauthenticated),
        fairlead.connect(server.address, api_key=WRONG_KEY) as client,
    ):
        client.queues()
    with found.refused("a wrong key, asyncio", fairlead.errors.Unauthenticated):
        asyncio.run(connect_async(server.address, WRONG_KEY))
    with (
        fila.Client(server.addresses["grpc"], api_key=WRONG_KEY) as theirs,
        found.refused("a wrong key, at the fila door"),
    ):
        theirs.enqueue("q", HEADERS, secret)
    with found.refused("a wrong key, over HTTP", urllib.error.HTTPError):
        get(server, "/metrics", WRONG_KEY)
    with found.refused("a key in an address", urllib.error.HTTPError):
        get(server, f"/metrics?api_key={WRONG_KEY}", None)
    with found.refused("a page that nobody has", urllib.error.HTTPError):
        get(server, f"/{WRONG_KEY}", key)
    with found.refused("a server that is not there", fairlead.errors.ServerUnreachable):
        fairlead.connect("127.0.0.1:1", api_key=key, retry_for="100ms")
    with found.refused("a command with a wrong key", subprocess.CalledProcessError):
        command = [
            sys.executable,
            "-c",
            "from fairlead.cli import main; main()",
            "--addr",
            server.address,
            "queue",
            "list",
        ]
        ran = subprocess.run(
            command, env={"FAIRLEAD_API_KEY": WRONG_KEY}, capture_output=True, text=True, timeout=PATIENCE_S
        )
        found.places["what the command said"] = ran.stdout + ran.stderr
        ran.check_returncode()


def wrong_calls(client: Any) -> dict[str, Callable[[], object]]:
    """What a program may get wrong with a secret in hand."""
    ref = DeliveryRef("01890000-0000-7000-8000-000000000000", "1")
    return {
        "a payload of text": lambda: client.enqueue("q", PAYLOAD),
        "a payload of another kind": lambda: client.enqueue_many("q", [NewMessage({"card": PAYLOAD})]),  # type: ignore[arg-type]
        "messages of another kind": lambda: client.enqueue_many(
            "q", [{"payload": PAYLOAD, "headers": HEADERS}]
        ),
        "messages that are text": lambda: client.enqueue_many("q", PAYLOAD),
        "headers that are a list": lambda: client.enqueue("q", b"", headers=[HEADER]),
        "headers with numbers": lambda: client.enqueue("q", b"", headers={"note": [HEADER]}),
        "headers that are no UTF-8": lambda: client.enqueue("q", b"", headers={"note": HEADER + "\ud800"}),
        "a stream of nothing, beside secrets": lambda: client.enqueue(
            "q", PAYLOAD.encode(), headers=HEADERS, stream=""
        ),
        "a queue that is not there": lambda: client.enqueue("nowhere", PAYLOAD.encode(), headers=HEADERS),
        "settlements that are text": lambda: client.settle(CARRY),
        "a settlement of another kind": lambda: _raised(client.settle([{"carry": CARRY}])),
        "an exchange with messages of another kind": lambda: client.exchange([EnqueueMany("q", [PAYLOAD])]),
        "an exchange with settlements of another kind": lambda: client.exchange([Settle(CARRY)]),
        "an exchange of something else": lambda: client.exchange([PAYLOAD]),
        "a quarantine of messages of another kind": lambda: client.quarantine(
            "q", [{"body": PAYLOAD, "headers": HEADERS}]
        ),
        "a quarantine with an error of another kind": lambda: client.quarantine(
            "q", [NewMessage(b"")], error={"text": FAILURE}
        ),
        "a nack with an error of another kind": lambda: _raised(
            [client.nack("q", ref.id, {"text": FAILURE})]
        ),
        "a carry that is too large": lambda: _raised(
            client.settle([Extend(ref, carry=CARRY.encode() * MAX_CARRY_BYTES)])
        ),
        "a carry of text": lambda: _raised(client.settle([Extend(ref, carry=CARRY)])),  # type: ignore[arg-type]
        "an error of another kind": lambda: _raised(client.settle([Fail(ref, error={"text": FAILURE})])),  # type: ignore[arg-type]
    }


def _raised(results: list[Any]) -> None:
    """A settle tells of each item; as an error, so that all refusals are looked through alike."""
    raise fairlead.errors.Rejected(str(results))


def speak_nonsense(server: ServerProcess, key: str, found: Spill) -> None:
    secret = f"{PAYLOAD} {key} {WRONG_KEY}".encode()
    for door in ("resp", "flight", "grpc", "http"):
        host, _, port = server.addresses[door].rpartition(":")
        request = b"GET /" + secret + b" HTTP/1.1\r\nAuthorization: " + secret + b"\r\n\r\n"
        for bytes_sent in (secret * 10, request, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + secret):
            with (
                socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection,
                contextlib.suppress(OSError),
            ):
                connection.sendall(bytes_sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
    with grpc.insecure_channel(server.addresses["grpc"]) as channel:
        for metadata in ((("authorization", f"Bearer {key}"),), (("authorization", WRONG_KEY),)):
            with found.refused(f"what is no protobuf {len(metadata[0][1])}", grpc.RpcError):
                channel.unary_unary("/fila.v1.FilaService/Enqueue")(
                    secret, timeout=PATIENCE_S, metadata=metadata
                )
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])
    with flight.connect(f"grpc://{server.addresses['flight']}") as raw:
        told = []
        arguments = encode({"queue": "q", "messages": [PAYLOAD]})
        for verb, metadata, batch in (
            ("write", secret, None),
            ("write", put(), pa.RecordBatch.from_pydict({"payload": [PAYLOAD]})),
            ("write", put(), pa.RecordBatch.from_pydict({"payload": [secret], "headers": [secret]})),
            ("claim", secret, None),
            ("write", encode({"verb": "steal", "fields": secret}), None),
            ("write", encode({"verb": "enqueue_many", "fields": arguments}), None),
        ):
            try:
                answer, _ = RawChannel(raw, verb, options=options).call(metadata, batch)
                told.append(str(answer.error))
            except (flight.FlightError, pa.ArrowException) as refused:
                told.append(str(refused))
        found.refusals["Flight requests that are none"] = "\n".join(told)


async def connect_async(address: str, key: str) -> None:
    async with await fairlead.aio.connect(address, api_key=key) as client:
        await client.queues()


def get(server: ServerProcess, path: str, key: str | None) -> str:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://{server.addresses['http']}{path}", headers=headers)
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        refused.add_note(refused.read().decode())
        raise


#: Where a canary may be, and why.
MEANT = {
    (
        "audit",
        FAILURE,
    ): "what an operator gave as the error of a quarantine, or searched for; whoever reads it has admin on everything",
    (
        "queues, keys",
        SCRIPT,
    ): "the options of a queue are shown to those who may see it, its scripts among them",
    ("queues, keys", HOOK_ERROR): "as part of the script",
    ("messages as they print", FAILURE): "error texts are metadata of a message",
    ("messages as they print", PAYLOAD): "the error text of this failure quotes it, as its author wrote it",
    ("files", PAYLOAD): "nothing at rest is encrypted, see docs/explanation/threat-model.md",
    ("files", HEADER): "as the payload",
    ("files", CARRY): "as the payload",
    ("files", SCRIPT): "as the payload",
    ("files", HOOK_ERROR): "as part of the script",
    ("files", FAILURE): "as the payload",
    ("files", CONFIG): "as the payload",
}
PLACES = (
    "stdout",
    "stderr",
    "metrics",
    "index",
    "spans",
    "audit",
    "queues, keys",
    "messages as they print",
    "files",
    "what the command said",
)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_was_sent_is_found_where_nobody_asked_for_it(spill: Spill, place: str) -> None:
    assert [
        canary for canary in CANARIES if canary in spill.places[place] and (place, canary) not in MEANT
    ] == []


def test_each_exception_is_one(spill: Spill) -> None:
    assert [meant for meant in MEANT if meant[1] not in spill.places[meant[0]]] == []


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_of_a_key_is_found_anywhere(spill: Spill, place: str) -> None:
    for key in spill.keys:
        assert key.split("_", 2)[2] not in spill.places[place]


def test_no_refusal_quotes_what_was_refused(spill: Spill) -> None:
    """Names are quoted, cut at 120 characters, to whoever sent them: of queues, keys, streams, consumers,
    options, verbs, and values of the configuration, where no secret belongs. What messages hold and what
    opens doors is not.
    """
    assert len(spill.refusals) > 30
    secrets = [PAYLOAD, HEADER, CARRY, FAILURE, *(key.split("_", 2)[2] for key in [*spill.keys, WRONG_KEY])]
    # The lines of a traceback that quote this file quote the program, not what it holds.
    leaks = {
        what: secret
        for what, said in spill.refusals.items()
        for secret in secrets
        if secret in _without_source(said)
    }
    assert leaks == {}


def _without_source(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if not line.startswith("    "))


def test_the_server_did_meet_what_it_should_have_met(spill: Spill) -> None:
    """Or the search would prove nothing."""
    assert "stopping" in spill.places["stderr"]
    assert "enqueue q" in spill.places["spans"]
    assert "fairlead_" in spill.places["metrics"]
    assert "Unauthenticated" in spill.refusals["a wrong key"]


def test_no_secret_is_in_what_objects_show_of_themselves(tmp_path: Path) -> None:
    secret = "fl_abcdefghijkl_" + "Canary" * 7 + "A"
    (tmp_path / "key.pem").write_text(secret)
    with open_in_memory() as broker:
        broker.create_queue("q")
        new = NewMessage(PAYLOAD.encode(), HEADERS)
        broker.enqueue_many("q", [new])
        delivery = broker.claim("q")[0]
        broker.settle([Extend(delivery, "30s", carry=CARRY.encode())])
        made = broker.keys.create("k", ["produce:q"])
        record = broker.key_ring.records()[0]
        shown: list[object] = [
            new,
            delivery,
            delivery.message,
            broker.peek("q", where="leased"),
            Extend(delivery, carry=CARRY.encode()),
            turn(broker, "me", enqueue={"q": [new]}),
            made,
            record,
            broker,
            broker.keys,
            Layers(broker, keys=True).admit(f"Bearer {made.secret}", "x"),
            NewKey(KeyInfo("abc", "n", (), 0, "", None, None), secret),
            ServerSettings(data=tmp_path),
            fairlead.Settings(),
            fairlead.Tls(tmp_path / "key.pem", tmp_path / "key.pem", tmp_path / "key.pem"),
        ]
        assert isinstance(delivery.message, Message)
        for one in shown:
            for text in (repr(one), str(one)):
                found = [
                    canary
                    for canary in (PAYLOAD, HEADER, CARRY, "Canary", made.secret.split("_", 2)[2])
                    if canary in text
                ]
                assert found == [], type(one)


def test_no_client_shows_its_key(tmp_path: Path) -> None:
    with run_server(tmp_path / "data", settings={"durability": "os", "auth.mode": "keys"}) as server:
        key = (server.data / "bootstrap.key").read_text().strip()
        with fairlead.connect(server.address, api_key=key) as client:
            pending: list[object] = [client]
            seen: set[int] = set()
            while pending:
                one = pending.pop()
                assert key not in repr(one)
                if id(one) not in seen and type(one).__module__.startswith("fairlead"):
                    seen.add(id(one))
                    pending += (
                        [value for name, value in vars(one).items() if "key" not in name]
                        if hasattr(one, "__dict__")
                        else []
                    )


def test_a_key_file_with_something_else_in_it_is_refused_without_being_quoted(tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.key"
    file.write_text(WRONG_KEY + "\tx")
    file.chmod(0o600)
    command = [
        sys.executable,
        "-c",
        "from fairlead.cli import main; main()",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "-o",
        "json",
    ]
    settings = [
        "--resp",
        "off",
        "--flight",
        "127.0.0.1:0",
        "--grpc",
        "off",
        "--http",
        "off",
        "--set",
        "auth.mode=keys",
        f"--set=auth.bootstrap_key_file={file}",
    ]
    ran = subprocess.run([*command, *settings], capture_output=True, text=True, timeout=PATIENCE_S)
    assert json.loads(ran.stderr.splitlines()[-1])["error"]["code"] == "setting_invalid"
    assert "WrongCanary" not in ran.stdout + ran.stderr
