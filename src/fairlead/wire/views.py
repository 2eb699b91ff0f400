"""Every verb beside the hot ones, with what it takes and gives: one table for server and client."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec

from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import InvalidRequest
from fairlead.model.access import AuditRecord, KeyInfo, NewKey
from fairlead.model.consumer import CloseResult, ConsumerInfo, TakenUp
from fairlead.model.facts import Intent
from fairlead.model.message import NewMessage
from fairlead.model.settle import SettleResult
from fairlead.model.staging import PublishResult, StagedWrite
from fairlead.model.views import (
    Explanation,
    FailureMetrics,
    MessageInfo,
    OperatorResult,
    QueueInfo,
    QueueStats,
    RedriveResult,
)
from fairlead.wire.depth import check_depth


class Verb(NamedTuple):
    """`repeatable`: carried out twice it ends as if carried out once, so a lost answer may be asked for
    again.

    The answer is the same, or says that it was done before.
    """

    gives: Any
    repeatable: bool = False


ADMIN: dict[str, Verb] = {
    "create_queue": Verb(QueueInfo),
    "update_queue": Verb(QueueInfo, repeatable=True),
    "pause": Verb(None, repeatable=True),
    "resume": Verb(None, repeatable=True),
    "purge": Verb(int),
    "delete_queue": Verb(None),
    "queues": Verb(list[QueueInfo], repeatable=True),
    "stats": Verb(QueueStats, repeatable=True),
    "quarantine": Verb(list[str]),
    "ack": Verb(SettleResult),
    "nack": Verb(SettleResult),
    "goodbye": Verb(int),
    "retry": Verb(OperatorResult),
    "drop": Verb(OperatorResult),
    "done": Verb(OperatorResult),
    "bury": Verb(OperatorResult),
    "hold": Verb(OperatorResult),
    "unhold": Verb(OperatorResult),
    "fail": Verb(OperatorResult),
    "drain": Verb(list[MessageInfo]),
    "prune": Verb(OperatorResult),
    "release_stream": Verb(bool),
    "redrive": Verb(RedriveResult),
    "intents": Verb(list[Intent], repeatable=True),
    "cancel_intent": Verb(bool),
    "find": Verb(MessageInfo, repeatable=True),
    "twin": Verb(str | None, repeatable=True),
    "peek": Verb(list[MessageInfo], repeatable=True),
    "failure_metrics": Verb(FailureMetrics, repeatable=True),
    "explain": Verb(Explanation, repeatable=True),
    "explain_queue": Verb(Explanation, repeatable=True),
    "checkpoint": Verb(None),
    "keys.create": Verb(NewKey),
    "keys.list": Verb(list[KeyInfo], repeatable=True),
    "keys.show": Verb(KeyInfo, repeatable=True),
    "keys.set_grants": Verb(KeyInfo, repeatable=True),
    "keys.change_grants": Verb(KeyInfo),
    "keys.revoke": Verb(None),
    "keys.rotate": Verb(NewKey),
    "audit.read": Verb(list[AuditRecord], repeatable=True),
    "config.get": Verb(str, repeatable=True),
    "config.set": Verb(None, repeatable=True),
    "config.list": Verb(dict[str, str], repeatable=True),
    "config.delete": Verb(None),
    "runbooks.save": Verb(None, repeatable=True),
    "runbooks.get": Verb(str, repeatable=True),
    "runbooks.list": Verb(dict[str, str], repeatable=True),
    "browse": Verb(list[MessageInfo], repeatable=True),
    "browse_splits": Verb(list[tuple[str, str]], repeatable=True),
    "consumers.register": Verb(ConsumerInfo, repeatable=True),
    "consumers.take_up": Verb(TakenUp, repeatable=True),
    "consumers.choose": Verb(None, repeatable=True),
    "consumers.close": Verb(CloseResult, repeatable=True),
    "consumers.heartbeat": Verb(ConsumerInfo, repeatable=True),
    "consumers.ceiling": Verb(int, repeatable=True),
    "consumers.release": Verb(int),
    "consumers.drop": Verb(None),
    "consumers.list": Verb(list[ConsumerInfo], repeatable=True),
    "consumers.show": Verb(ConsumerInfo, repeatable=True),
    "staging.publish": Verb(PublishResult, repeatable=True),
    "staging.discard": Verb(int, repeatable=True),
    "staging.list": Verb(list[StagedWrite], repeatable=True),
}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_results = {name: msgspec.msgpack.Decoder(verb.gives) for name, verb in ADMIN.items()}


def encode_arguments(arguments: Mapping[str, object]) -> bytes:
    try:
        return _encode({name: plain(value) for name, value in arguments.items()})
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "plain values", str(wrong)) from None


def decode_arguments(verb: str, raw: bytes) -> dict[str, Any]:
    """Names and plain values become what the engine takes; whether they are right is for the engine to say."""
    if verb not in ADMIN:
        raise InvalidRequest("verb", "one of " + ", ".join(ADMIN), verb)
    try:
        arguments = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest("arguments", "a MessagePack map", str(wrong)) from None
    check_depth((arguments,), "arguments")
    if not isinstance(arguments, dict) or not all(isinstance(name, str) for name in arguments):
        raise InvalidRequest("arguments", "a MessagePack map with text as keys", type(arguments).__name__)
    if arguments.get("filter") is not None:
        arguments["filter"] = _convert(arguments["filter"], DeadFilter, "filter")
    if isinstance(arguments.get("messages"), list):
        arguments["messages"] = [
            _convert(message, NewMessage, "messages") for message in arguments["messages"]
        ]
    return arguments


def encode_result(value: object) -> bytes:
    return _encode(value)


def decode_result(verb: str, raw: bytes) -> Any:
    return _results[verb].decode(raw)


def _convert(value: object, kind: type, field: str) -> Any:
    """By name, unchecked: a field of the wrong type is refused by the engine, in its words."""
    known = set(kind.__annotations__)
    if not isinstance(value, dict) or not known.issuperset(value):
        raise InvalidRequest(
            field,
            "a map of " + ", ".join(sorted(known)),
            list(value) if isinstance(value, dict) else type(value),
        )
    if kind is NewMessage and "payload" not in value:
        raise InvalidRequest(field, "messages with a payload", list(value))
    header = value.get("header")
    if isinstance(header, list):
        value = value | {"header": tuple(header)}
    return kind(**value)


def plain(value: object) -> object:
    """Durations as the text that the engine reads; records as maps; enums as their values."""
    if isinstance(value, timedelta):
        return f"{round(value.total_seconds() * 1000)}ms"
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (msgspec.Struct,)):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, DeadFilter):
        return {name: plain(getattr(value, name)) for name in DeadFilter.__annotations__}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value
