"""The faces of a broker, and how each makes the calls of the table: in process with a key, the two clients, fila's
protocol, the command.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, get_origin

import grpc
import hiredis
from typer.testing import CliRunner

import fairlead
import fairlead.aio
from fairlead.cli.app import app
from fairlead.errors import FairleadError
from fairlead.middleware.stack import AdmittedCaller
from fairlead.request import VERBS, Request
from fairlead.server.fila.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc
from fairlead.surface import Surface
from fairlead.wire.error_lines import read_error
from tests.doors.resp.wire import Wire
from tests.faces.table import SECRET, Outcome, Thing
from tests.faces.typed import spoken, typed

PATIENCE_S = 60


class InProcessFace:
    """The broker behind the layers, as a door uses it."""

    def __init__(self, guard: AdmittedCaller) -> None:
        self._guard = guard

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._guard, verb)

    def consume_one(self, queue: str) -> int:
        return len(self._guard.claim(queue))

    def close(self) -> None:
        pass


class ClientFace:
    def __init__(self, address: str, key: str | None) -> None:
        self.client = fairlead.connect(address, api_key=key)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.client, verb)

    def consume_one(self, queue: str) -> int:
        with self.client.consume(queue, prefetch=1) as consumption:
            next(consumption)
        return 1

    def close(self) -> None:
        self.client.close()


class AioFace:
    """An event loop in a thread of its own, so that a test may wait for its coroutines."""

    _loop: asyncio.AbstractEventLoop | None = None
    _lock = threading.Lock()

    def __init__(self, address: str, key: str | None) -> None:
        self.client = self.wait(fairlead.aio.connect(address, api_key=key))

    @classmethod
    def wait(cls, coroutine: Any) -> Any:
        with cls._lock:
            if cls._loop is None:
                cls._loop = asyncio.new_event_loop()
                threading.Thread(target=cls._loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, cls._loop).result(PATIENCE_S)

    def __getattr__(self, verb: str) -> Any:
        return _Waited(getattr(self.client, verb))

    def consume_one(self, queue: str) -> int:
        async def take() -> int:
            async with self.client.consume(queue, prefetch=1) as consumption:
                await anext(aiter(consumption))
            return 1

        return int(self.wait(take()))

    def close(self) -> None:
        self.wait(self.client.close())


class _Waited:
    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, verb: str) -> Any:
        return _Waited(getattr(self._found, verb))

    def __call__(self, *args: Any, **options: Any) -> Any:
        asked = self._found(*args, **options)
        return AioFace.wait(_listed(asked) if hasattr(asked, "__aiter__") else asked)


async def _listed(found: Any) -> list[Any]:
    return [one async for one in found]


class FilaFace:
    def __init__(self, address: str, key: str | None) -> None:
        self.channel = grpc.insecure_channel(address)
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._stubs = [
            service_pb2_grpc.FilaServiceStub(self.channel),
            admin_pb2_grpc.FilaAdminStub(self.channel),
        ]

    def ask(self, rpc: str, request: Any) -> Any:
        stub = next(stub for stub in self._stubs if hasattr(stub, rpc))
        answer = getattr(stub, rpc)(request, timeout=PATIENCE_S, metadata=self._metadata)
        return next(answer) if rpc == "Consume" else answer

    def close(self) -> None:
        self.channel.close()


def _acl(thing: Thing) -> admin_pb2.SetAclRequest:
    return admin_pb2.SetAclRequest(
        key_id=thing.key, permissions=[admin_pb2.AclPermission(kind="consume", pattern=thing.queue)]
    )


def _ours(listed: Any, field: str, wanted: str) -> list[str]:
    """Of a list of everything only what this is about."""
    return [getattr(one, field) for one in listed if getattr(one, field) == wanted]


#: Each RPC of fila.v1 with the row of the table that it is.
FILA: dict[str, tuple[str, Callable[[FilaFace, Thing], object]]] = {
    "Enqueue": (
        "enqueue",
        lambda x, t: x.ask("Enqueue", service_pb2.EnqueueRequest(queue=t.queue, payload=b"new")),
    ),
    "Consume": (
        "claim: by credit",
        lambda x, t: x.ask("Consume", service_pb2.ConsumeRequest(queue=t.queue)).message.metadata.queue_id,
    ),
    "Ack": ("ack", lambda x, t: x.ask("Ack", service_pb2.AckRequest(queue=t.queue, message_id=t.leased.id))),
    "Nack": (
        "nack",
        lambda x, t: x.ask(
            "Nack", service_pb2.NackRequest(queue=t.queue, message_id=t.leased.id, error="no")
        ),
    ),
    "CreateQueue": (
        "create_queue",
        lambda x, t: x.ask("CreateQueue", admin_pb2.CreateQueueRequest(name=t.queue + ".new")),
    ),
    "DeleteQueue": (
        "delete_queue",
        lambda x, t: x.ask("DeleteQueue", admin_pb2.DeleteQueueRequest(queue=t.queue)),
    ),
    "SetConfig": (
        "config.set",
        lambda x, t: x.ask("SetConfig", admin_pb2.SetConfigRequest(key=t.weight, value="3")),
    ),
    "GetConfig": ("config.get", lambda x, t: x.ask("GetConfig", admin_pb2.GetConfigRequest(key=t.weight))),
    "ListConfig": (
        "config.list",
        lambda x, t: x.ask("ListConfig", admin_pb2.ListConfigRequest(prefix=t.weight)),
    ),
    "GetStats": ("stats", lambda x, t: x.ask("GetStats", admin_pb2.GetStatsRequest(queue=t.queue))),
    "Redrive": (
        "redrive: all of the dead letters",
        lambda x, t: x.ask("Redrive", admin_pb2.RedriveRequest(dlq_queue=t.queue + ".dlq")),
    ),
    "ListQueues": (
        "queues",
        lambda x, t: _ours(x.ask("ListQueues", admin_pb2.ListQueuesRequest()).queues, "name", t.queue),
    ),
    "CreateApiKey": (
        "keys.create: without rights",
        lambda x, t: x.ask("CreateApiKey", admin_pb2.CreateApiKeyRequest(name="made")).is_superadmin,
    ),
    "RevokeApiKey": (
        "keys.revoke",
        lambda x, t: x.ask("RevokeApiKey", admin_pb2.RevokeApiKeyRequest(key_id=t.key)),
    ),
    "ListApiKeys": (
        "keys.list",
        lambda x, t: _ours(x.ask("ListApiKeys", admin_pb2.ListApiKeysRequest()).keys, "key_id", t.key),
    ),
    "SetAcl": ("keys.set_grants", lambda x, t: x.ask("SetAcl", _acl(t))),
    "GetAcl": ("keys.show", lambda x, t: x.ask("GetAcl", admin_pb2.GetAclRequest(key_id=t.key))),
}


class CommandFace:
    def __init__(self, address: str, key: str | None) -> None:
        self._env = {
            "FAIRLEAD_ADDR": address,
            "FAIRLEAD_DATA": None,
            "FAIRLEAD_API_KEY": key,
            "FAIRLEAD_API_KEY_FILE": None,
        }

    def run(self, *args: str) -> Any:
        ran = CliRunner(env=self._env).invoke(app, ["-o", "json", *args], catch_exceptions=False)
        if ran.exit_code:
            raise CommandRefused(ran.exit_code, ran.stdout, ran.stderr)
        return json.loads(ran.stdout)

    def close(self) -> None:
        pass


class DoFace(CommandFace, Surface):
    """Every verb as `fairlead do VERB`, made from the same calls as those of Python."""

    def do(self, request: Request[Any]) -> Any:
        kind = VERBS[request.verb_name]
        answer = self.run("do", *typed(request))
        if get_origin(kind.answer) is dict:
            return answer
        return [_named(answer)] if kind.request.paged else _named(answer)

    def consume_one(self, queue: str) -> int:
        return len(self.claim(queue))


class RespFace(Surface):
    """The door that speaks Redis, by the packed form, as our client uses it."""

    def __init__(self, address: str, key: str) -> None:
        self.wire = Wire(address)
        self.wire.ask("HELLO", "3", "AUTH", "default", key)

    def do(self, request: Request[Any]) -> Any:
        return self.wire.do(request)

    def consume_one(self, queue: str) -> int:
        return len(self.claim(queue))

    def close(self) -> None:
        self.wire.close()


class WordsFace(RespFace):
    """The same in plain words, as people and other languages use it."""

    def do(self, request: Request[Any]) -> Any:
        reply = self.wire.ask(*spoken(request))
        if isinstance(reply, hiredis.ReplyError):
            raise read_error(str(reply))
        if reply == b"OK" and VERBS[request.verb_name].answer is type(None):
            return None
        answer = _text(reply)
        if get_origin(VERBS[request.verb_name].answer) is dict:
            return answer
        return [_named(answer)] if request.paged else _named(answer)


def _text(found: Any) -> Any:
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    if isinstance(found, dict):
        return {_text(name): _text(part) for name, part in found.items()}
    return [_text(one) for one in found] if isinstance(found, list) else found


def _named(found: Any) -> Any:
    """JSON with the fields of objects as attributes."""
    if isinstance(found, list):
        return [_named(one) for one in found]
    if not isinstance(found, dict):
        return found
    return SimpleNamespace(**{name: _named(part) for name, part in found.items()})


class CommandRefused(Exception):
    def __init__(self, code: int, out: str, err: str) -> None:
        super().__init__(code, out, err)
        self.error = json.loads(err)["error"]["code"]
        self.said = repr((f"exit_{code}", out, err))


def _command(*words: str) -> Callable[[CommandFace, Thing], object]:
    """`{}` fields in the words are those of the thing."""
    return lambda x, t: x.run(*(word.format(t=t) for word in words))


def _with_runbook(x: CommandFace, t: Thing) -> object:
    with TemporaryDirectory() as directory:
        file = Path(directory, "runbook.toml")
        file.write_text(f'project = "{t.project}"\n[queue.{SECRET}-{t.token}]\n')
        return x.run("apply", str(file), "--yes")


#: Rows of commands that are made for people; the first words are the name of the command.
COMMANDS: dict[str, Callable[[CommandFace, Thing], object]] = {
    "enqueue": _command("queue", "push", "{t.queue}", "new"),
    "quarantine": _command("queue", "quarantine", "{t.queue}", SECRET),
    "create_queue": _command("queue", "create", "{t.queue}.new"),
    "update_queue": _command("queue", "update", "{t.queue}", "--visibility-timeout", "9s"),
    "delete_queue": _command("queue", "delete", "{t.queue}", "--yes"),
    "pause": _command("queue", "pause", "{t.queue}"),
    "resume": _command("queue", "resume", "{t.queue}"),
    "purge": _command("queue", "purge", "{t.queue}", "--yes"),
    "drop": _command("queue", "drop", "{t.queue}", "{t.ready}", "{t.held}", "--yes"),
    "done": _command("queue", "done", "{t.queue}", "{t.ready}", "--yes"),
    "bury": _command("queue", "bury", "{t.queue}", "{t.ready}", "--yes"),
    "hold": _command("queue", "hold", "{t.queue}", "{t.ready}"),
    "unhold": _command("queue", "unhold", "{t.queue}", "{t.held}"),
    "fail": _command("queue", "fail", "{t.queue}", "{t.leased.id}", "--yes"),
    "reset": _command("queue", "reset", "{t.queue}", "{t.ready}", "{t.held}"),
    "prune": _command("queue", "prune", "{t.queue}", "--all", "--yes"),
    "drain": _command("queue", "drain", "{t.queue}", "--yes"),
    "throttles": lambda x, t: [one["key"] for one in x.run("throttle", "list")],
    "close_throttle": _command("throttle", "close", "provider", "1m"),
    "open_throttle": _command("throttle", "open", "provider"),
    "release_stream": _command("queue", "release-stream", "{t.queue}", "s"),
    "retry": _command("queue", "retry", "{t.queue}", "{t.dead}", "--yes"),
    "redrive": _command("redrive", "{t.queue}", "--yes"),
    "redrive: dry run": _command("redrive", "{t.queue}", "--dry-run"),
    "intents": lambda x, t: [
        one["intent_id"] for one in x.run("intent", "list") if one["intent_id"] == t.intent
    ],
    "cancel_intent": _command("intent", "cancel", "{t.intent}"),
    "queues": lambda x, t: [info["name"] for info in x.run("queue", "list") if info["name"] == t.queue],
    "stats": lambda x, t: x.run("stats", t.queue)["queues"][0]["ready"],
    "peek": lambda x, t: [info["id"] for info in x.run("queue", "peek", t.queue)],
    "peek: leased": _command("queue", "show", "{t.queue}", "--status", "active"),
    "find: in a queue": _command("queue", "inspect", "{t.queue}", "{t.ready}"),
    "failure_metrics": lambda x, t: x.run("failures", t.queue)["by_reason"],
    "explain: in a queue": lambda x, t: x.run("explain", t.queue, t.dead)["subject"],
    "explain_queue": lambda x, t: x.run("explain", t.queue)["subject"],
    "config.get": _command("config", "get", "{t.weight}"),
    "config.set": _command("config", "set", "{t.weight}", "3"),
    "config.delete": _command("config", "unset", "{t.weight}"),
    "config.list": _command("config", "list", "{t.weight}"),
    "config.set: of no queue": _command("config", "set", "{t.note}", SECRET),
    "consumers.list": lambda x, t: [
        info["name"] for info in x.run("consumer", "list") if info["name"] == t.consumer
    ],
    "consumers.show": lambda x, t: x.run("consumer", "show", t.queue, t.consumer)["open"],
    "consumers.release": _command("consumer", "release", "{t.queue}", "{t.consumer}", "--yes"),
    "consumers.drop": _command("consumer", "drop", "{t.queue}", "{t.consumer}", "--yes"),
    "staging.list": lambda x, t: [
        write["token"] for write in x.run("staged", "list") if write["token"] == t.write
    ],
    "staging.discard": _command("staged", "discard", "{t.queue}", "{t.write}", "--yes"),
    "runbooks.save": _with_runbook,
    "keys.create": _command("key", "create", "made", "--grant", "consume:{t.queue}"),
    "keys.list": lambda x, t: [info["id"] for info in x.run("key", "list") if info["id"] == t.key],
    "keys.show": _command("key", "show", "{t.key}"),
    "keys.set_grants": _command("key", "grant", "{t.key}", "consume:{t.queue}", "--only"),
    "keys.change_grants": _command("key", "grant", "{t.key}", "--remove", "consume:{t.queue}"),
    "keys.rotate": _command("key", "rotate", "{t.key}"),
    "keys.revoke": _command("key", "revoke", "{t.key}", "--yes"),
    "audit.read": lambda x, t: len(x.run("audit", "--limit", "1")),
    "checkpoint": _command("backup", "{t.path}"),
}
#: Commands that make many calls, or none: on files, on the data directory itself, or for as long as they run.
OTHER_COMMANDS = {
    "doctor",
    "key bootstrap",
    "repair",
    "restore",
    "runbook check",
    "runbook schema",
    "runbook show",
    "serve",
    "tls init",
    "top",
    "verify",
    "worker run",
}


def outcome_at(face: Any, call: Callable[[Any, Thing], object], thing: Thing) -> Outcome:
    """What a caller learns, with what belongs to this one thing left out."""
    try:
        learnt = Outcome("", repr(call(face, thing)))
    except FairleadError as refused:
        learnt = Outcome(refused.code, repr((refused.message, refused.fields)))
    except CommandRefused as failed:
        learnt = Outcome(failed.error, failed.said)
    except grpc.RpcError as failed:
        trailing = dict(failed.trailing_metadata() or ())
        learnt = Outcome(
            trailing.pop("fairlead-error", ""), repr((failed.code().name, failed.details(), sorted(trailing)))
        )
    return Outcome(learnt.error, anonymous(learnt.said, thing))


def anonymous(text: str, thing: Thing) -> str:
    for field, value in thing._asdict().items():
        for shown in (value.id, value.lease) if field == "leased" else (str(value),):
            text = re.sub(
                rf"\b{re.escape(shown)}\b" if field in ("intent", "generation") else re.escape(shown),
                f"<{field}>",
                text,
            )
    for characters in (30, 12):
        text = text.replace(thing.ready[:characters], "<start>").replace(thing.ready[-characters:], "<end>")
    return text
