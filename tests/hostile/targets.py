"""Everything of ours that reads what a stranger may have written, each as a function of bytes.

A target returns when it is content: the bytes were read, or refused with a typed error. Whatever else comes
out of it is a finding. `tests.hostile.guided` looks for one with the help of coverage, `test_findings.py`
runs those that were found.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from fairlead.config.load import SETTINGS
from fairlead.decide.error_pattern import ErrorPattern, PatternRefused
from fairlead.decide.redact import Redaction
from fairlead.decide.rights import covers, matches
from fairlead.errors import BrokenInvariant, FairleadError
from fairlead.hooks.results import is_ok, read_enqueue, read_failure, unreadable, what_went_wrong
from fairlead.hooks.wire import FromHost, ResultRows
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.model.access import read_grants
from fairlead.model.addresses import split_address
from fairlead.model.durations import to_ms
from fairlead.model.handles import read_handle
from fairlead.model.message import NewMessage
from fairlead.model.names import check_queue_name
from fairlead.model.settle import DeliveryRef
from fairlead.model.views import MessageInfo
from fairlead.request import VERBS
from fairlead.runbook.check import check_text
from fairlead.server.fila.config_keys import ConfigKeys
from fairlead.server.fila.service import _read_id
from fairlead.server.fila.v1 import service_pb2
from fairlead.server.flight import _read_verb
from fairlead.testing import ManualClock, open_in_memory
from fairlead.wire.calls import Answer, decode, encode
from fairlead.wire.faults import error_of
from fairlead.wire.packed import decode_request
from fairlead.wire.requests import read_batch
from fairlead.wire.values import read_headers
from fairlead.wire.writes import decode_result, write_verbs
from tests.hostile import fuzz, resp
from tests.hostile.values import NO_MAPS


class Target(NamedTuple):
    read: Callable[[bytes], object]
    seeds: list[bytes]


#: A checkpoint writes files, and a runbook names some.
_VERBS = sorted(VERBS.keys() - {"checkpoint"})


def run(name: str, raw: bytes) -> None:
    """Raises `AssertionError` for what a stranger must not be able to cause."""
    try:
        TARGETS[name].read(raw)
    except BrokenInvariant as broken:
        raise AssertionError(f"{name}: {raw[:200]!r} broke an invariant") from broken
    except FairleadError as refused:
        if len(refused.message) > 20_000:
            raise AssertionError(f"{name}: {raw[:200]!r} is answered at length") from refused
    except (AssertionError, KeyboardInterrupt):
        raise
    except BaseException as unforeseen:
        raise AssertionError(f"{name}: {raw[:200]!r} met {unforeseen!r}") from unforeseen


@lru_cache(maxsize=1)
def _broker() -> AdmittedCaller:
    """One for all: it has the queue `q`, in a store that forgets."""
    broker = open_in_memory(clock=ManualClock(), durability="os")
    broker.create_queue("q")
    return Layers(broker).admit(None, "fuzz")


def _fresh() -> AdmittedCaller:
    """What was let through must not pile up, nor what was written down about it."""
    if next(_uses) % 500 == 0:
        _broker()._broker.close()
        _broker.cache_clear()
    return _broker()


_uses = itertools.count(1)
_WRITES = write_verbs()


def _call(verb: str) -> Callable[[bytes], object]:
    return lambda raw: fuzz.carry_out(_fresh(), verb, raw, None)


def _batch(raw: bytes) -> object:
    """One byte for the verb, two for the length of the metadata, the metadata, and the rest is a stream of Arrow's."""
    if len(raw) < 3:
        return None
    ends = 3 + int.from_bytes(raw[1:3], "big")
    metadata = raw[3:ends]
    return fuzz.carry_out(
        _fresh(), _WRITES[raw[0] % len(_WRITES)], metadata, read_batch(memoryview(raw[ends:]))
    )


def _request(raw: bytes) -> object:
    """One byte for the verb, the rest is the map of its fields, as the door that speaks Redis reads it."""
    if not raw:
        return None
    kind = VERBS[_VERBS[raw[0] % len(_VERBS)]].request
    return _fresh().do(resp.hasty(decode_request(kind, raw[1:])))


def _answer(raw: bytes) -> object:
    """A server that means ill: what a client of ours makes of its answer."""
    answer = decode(raw, Answer)
    return None if answer.error is None else str(error_of(answer.error))


def _result(raw: bytes) -> object:
    if not raw:
        return None
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode_result(_WRITES[raw[0] % len(_WRITES)], raw[1:])
    return None


def _pattern(raw: bytes) -> object:
    expression, _, text = _text(raw).partition("\0")
    with contextlib.suppress(PatternRefused):
        return ErrorPattern(expression).search(text)
    return None


def _setting(raw: bytes) -> object:
    """One byte for which setting, the rest is its text."""
    if not raw:
        return None
    settings = list(SETTINGS.values())
    return settings[raw[0] % len(settings)].read(_text(raw[1:]))


def _words(raw: bytes) -> object:
    """Everything that is read from a short text."""
    first, _, second = _text(raw).partition("\0")
    readers: list[Callable[[], object]] = [
        lambda: read_handle(DeliveryRef(first, second)),
        lambda: check_queue_name(first),
        lambda: split_address(first, may_pick_port=True),
        lambda: to_ms(first, "x"),
        lambda: _read_id(first),
        lambda: Layers(_broker()._broker, keys=True).admit(first, second),
        lambda: _broker().find(first),
        lambda: _broker().find(first, "q"),
        lambda: [matches(grant.pattern, second) for grant in read_grants([first])],
        lambda: [covers(read_grants([second]), grant) for grant in read_grants([first])],
    ]
    for read in readers:
        with contextlib.suppress(FairleadError):
            read()
    return None


_from_host = msgspec.msgpack.Decoder(FromHost)


def _hook_rows(raw: bytes) -> object:
    """A host that was taken over."""
    try:
        message = _from_host.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for row in message.rows if isinstance(message, ResultRows) else []:
        for read in (read_enqueue, read_failure):
            try:
                decided: Any = read(row) if is_ok(row) else what_went_wrong(row, timeout_ms=1, memory_bytes=1)
            except (ValueError, TypeError):
                unreadable(row)
                continue
            assert not isinstance(getattr(decided, "delay_ms", 0), float) or math.isfinite(decided.delay_ms)
    return None


def _fila(raw: bytes) -> object:
    """A message of fila.v1, whichever it may be."""
    try:
        enqueue, settled = service_pb2.EnqueueRequest.FromString(raw), service_pb2.NackRequest.FromString(raw)
    except DecodeError:
        return None
    keys = ConfigKeys(_fresh().config)
    attempts: list[Callable[[], object]] = [
        lambda: _fresh().enqueue_many(
            check_queue_name(enqueue.queue), [NewMessage(enqueue.payload, dict(enqueue.headers))]
        ),
        lambda: _fresh().nack(settled.queue, _read_id(settled.message_id).hex(), settled.error),
        lambda: keys.set(settled.queue, settled.error),
        lambda: keys.get(settled.queue),
        lambda: keys.list(settled.queue),
    ]
    for attempt in attempts:
        with contextlib.suppress(FairleadError):
            attempt()
    return None


def _redacted(raw: bytes) -> object:
    """A payload, shown to somebody who may not see all of it."""
    path, _, payload = raw.partition(b"\0")
    redaction = Redaction(("authorization",), (_text(path),))
    return redaction.shown([replace(_some_message(), payload=payload, carry=payload)])


@lru_cache(maxsize=1)
def _some_message() -> MessageInfo:
    broker = _fresh()
    broker.enqueue("q", b"x", headers={"authorization": "Bearer x"})
    return broker.peek("q", limit=1)[0]


def _runbook(raw: bytes) -> object:
    """One byte for the syntax."""
    return check_text(_text(raw[1:]), ("toml", "hcl", "json")[raw[0] % 3]) if raw else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape") if len(raw) % 7 == 0 else raw.decode("utf-8", "replace")


def _batch_seeds() -> list[bytes]:
    seeds = []
    for verb, (batch, call) in {**fuzz._SOUND, **fuzz.BULK}.items():
        if batch is not None:
            metadata = fuzz.packed(verb, call)
            stream = batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes()
            seeds.append(bytes([_WRITES.index(verb)]) + len(metadata).to_bytes(2, "big") + metadata + stream)
    return seeds


_RIGHT: dict[str, Any] = {
    "filter": {"error_regex": "a+"},
    "ids": [],
    "limit": 1,
    "since": 1,
    "before": 1,
    "count": 1,
    "messages": [{"payload": b"x"}],
    "grants": ["produce:q"],
}


def _request_seeds() -> list[bytes]:
    """Each verb with all its fields by name."""
    found = [VERBS[verb].fields for verb in _VERBS]
    return [
        bytes([at]) + encode({name: _RIGHT.get(name, "q") for name in names})
        for at, names in enumerate(found)
    ]


TARGETS: dict[str, Target] = {
    "open": Target(_read_verb, [encode({"verb": "write", "fairlead": 1}), *NO_MAPS[:6]]),
    **{
        verb: Target(_call(verb), [fuzz.packed(verb, call)])
        for verb, (batch, call) in {**fuzz._SOUND, **fuzz.BULK}.items()
        if batch is None
    },
    "batch": Target(_batch, _batch_seeds()),
    "request": Target(_request, _request_seeds()),
    "answer": Target(
        _answer,
        [
            encode({"error": {"code": "queue_full", "message": "m", "fields": {"queue": "q"}}}),
            encode({"queues": [["q", 0]]}),
        ],
    ),
    "result": Target(_result, [bytes([at]) + encode({}) for at in range(len(_WRITES))]),
    "headers": Target(read_headers, [encode({"a": "b"}), *NO_MAPS[:6]]),
    "pattern": Target(
        _pattern, [b"(a+)+$\0aaaa", b"^[a-z]{2,5}\\b|x$\0abc", b"(?i)K\xc4\xb1\0k", b"(?s).*\\d\0\n1"]
    ),
    "setting": Target(_setting, [bytes([at]) + b"10s" for at in range(len(SETTINGS))]),
    "words": Target(
        _words,
        [
            b"01890000-0000-7000-8000-000000000000\x00ff",
            b"produce:a/b.*\0a/b.c",
            b"[::1]:5556",
            b"1h30m",
            b"Bearer fl_a_b",
        ],
    ),
    "hook_rows": Target(
        _hook_rows,
        [encode(["rows", [[0, "k", 1, "s", True, "a"], [0, "retry", 5], [2, "boom"]]]), encode(["done"])],
    ),
    "fila": Target(
        _fila,
        [
            service_pb2.EnqueueRequest(queue="q", headers={"a": "b"}, payload=b"x").SerializeToString(),
            service_pb2.NackRequest(queue="throttle.a", message_id="1,2", error="1,2").SerializeToString(),
        ],
    ),
    "resp": Target(resp.read_bytes, resp.BYTE_SEEDS),
    "resp_words": Target(lambda raw: resp.run_commands(_fresh(), raw), resp.WORD_SEEDS),
    "redacted": Target(
        _redacted, [b"$.a\0" + json.dumps({"a": [1, {"b": "x"}]}).encode(), b'$..b[*]\0[[[{"b":[1]}]]]']
    ),
    "runbook": Target(
        _runbook,
        [
            b"\0[queue.q]\nmax_attempts = 3\n",
            b'\1queue "q" {\n max_attempts = 3\n}\n',
            b'\2{"queue": {"q": {}}}',
        ],
    ),
}
