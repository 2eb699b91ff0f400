"""Requests of a session: carried out once, with their answers remembered in the transaction of the effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.engine.memory import Memory
from fairlead.engine.session_index import Session
from fairlead.engine.sessions import facts_of_answer, find_session, use_session
from fairlead.engine.transaction import Transaction
from fairlead.engine.work.claim import still_leased
from fairlead.errors import InvalidRequest, RequestExpired, SessionExpired, SessionFull
from fairlead.model.limits import MAX_NUMBER, MAX_SESSION_ANSWERS, MAX_SESSION_BYTES
from fairlead.records.facts import StateFact
from fairlead.records.session import RememberedAnswer
from fairlead.request import VERBS, Caller, Request
from fairlead.store.kv.port import Table
from fairlead.store.rows import answer_key, session_key
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Settle

Work = Callable[[Transaction, Any], Any]

#: The approximate size of an answer beside others that have not arrived.
_ANSWER_BYTES = 256
_NOTHING = b"\xc0"

_encode = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def run_numbered(tx: Transaction, request: Request[Any], work: Work) -> Any:
    """Carry out a request with a number, or return its remembered answer if it was carried out. A repeated
    claim returns the messages that are still leased, not its first answer.
    """
    caller, name = tx.caller, str(tx.caller.session)
    number, arrived = caller.number, caller.arrived
    key = session_key(caller.key_id, name)
    session = find_session(tx, key)
    if session is None:
        raise SessionExpired(name, number)
    if number <= session.arrived:
        raise RequestExpired(name, number, session.arrived)
    if number in session.rows:
        return _recall(tx, answer_key(key, session.rows[number]), request)
    if len(session.rows) > 1 or session.bytes >= MAX_SESSION_BYTES:
        _check_full(tx, session)
    if type(request) is Claim:
        if request.token is not None:
            raise InvalidRequest(
                "token", "none in a session, which knows a claim by its number", request.token
            )
        request = replace(request, token=caller.claim_token)
    answer = work(tx, request)
    if answer or type(request) is not Claim:
        kept = encode(request, answer)
        for fact in facts_of_answer(key, session, number, arrived, tx.now_ms, request.verb_name, kept):
            tx.add(fact)
    else:
        # A claim that found nothing may find something when it is repeated, so there is nothing to remember.
        use_session(tx, key, session, arrived)
    return answer


def find_place(memory: Memory, caller: Caller) -> tuple[bytes, Session] | None:
    """For a short way: the session of a new request, if memory knows it and it has room. None: `run_numbered`
    decides.
    """
    name, number, arrived = caller.session, caller.number, caller.arrived
    if not (type(name) is str and type(number) is type(arrived) is int):
        return None
    key = session_key(caller.key_id, name)
    session = memory.sessions.sessions.get(key)
    if session is None or not 0 <= arrived < number <= MAX_NUMBER:
        return None
    if number <= session.arrived or number in session.rows:
        return None
    return None if len(session.rows) > 1 or session.bytes >= MAX_SESSION_BYTES else (key, session)


def facts_at(
    place: tuple[bytes, Session], caller: Caller, request: Request[Any], answer: Any, now_ms: int
) -> tuple[StateFact, ...]:
    kept = encode(request, answer)
    return facts_of_answer(*place, caller.number, caller.arrived, now_ms, request.verb_name, kept)


def _check_full(tx: Transaction, session: Session) -> None:
    """An answer that replaces those that have arrived always has room."""
    arrived = session.up_to(tx.caller.arrived)
    count = len(session.rows) - len(arrived)
    size = session.bytes - sum([session.sizes[number] for number in arrived])
    if count >= MAX_SESSION_ANSWERS or size >= MAX_SESSION_BYTES:
        raise SessionFull(str(tx.caller.session), count, size)
    if count:
        tx.store.check_room(_ANSWER_BYTES, in_reserve=True)


def _recall(tx: Transaction, row_key: bytes, request: Request[Any]) -> Any:
    remembered: RememberedAnswer = tx.record(Table.ANSWERS, row_key)
    try:
        if remembered.verb == request.verb_name:
            return decode(request, remembered.answer, lambda: still_leased(tx, tx.caller.claim_token))
    except ValueError:
        pass
    raise InvalidRequest(
        "number", f"a new one, because another {remembered.verb} had this one", remembered.number
    )


def encode(request: Request[Any], answer: Any) -> bytes:
    if isinstance(request, Claim):
        return _NOTHING
    if isinstance(request, Exchange):
        parts = zip(request.requests, answer, strict=True)
        return _encode([msgspec.Raw(encode(one, part)) for one, part in parts])
    return _encode(answer)


def decode(request: Request[Any], raw: bytes | msgspec.Raw, find_leased: Callable[[], Any]) -> Any:
    """Raises `ValueError` for the answer to a request with other parts."""
    if isinstance(request, Claim):
        if bytes(raw) != _NOTHING:
            raise ValueError("a claim is remembered without its messages")
        return find_leased()
    if isinstance(request, Exchange):
        parts = zip(request.requests, _decode_parts(raw), strict=True)
        return [decode(one, part, find_leased) for one, part in parts]
    answer = _decoder(request.verb_name).decode(raw)
    if isinstance(request, (Settle, EnqueueMany)):
        given = request.items if isinstance(request, Settle) else request.messages
        if len(given) != len(answer):
            raise ValueError("there must be one result for each item")
    return answer


@cache
def _decoder(verb: str) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(VERBS[verb].answer)
