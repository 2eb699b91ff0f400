"""Carries out a request under an id once, and keeps the request ids of different keys apart.

The engine remembers the answer in the commit of the effect, and returns it when the id comes again. This
layer stands behind the check of rights, so that a remembered answer is given only to a caller that may still
make the request. The same id from another key is another request.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from fairlead.errors import RequestExpired
from fairlead.model.ids import find_id, show_id
from fairlead.model.limits import MAX_ANSWERED
from fairlead.request import Answer, Caller, Handler, Request


class Once:
    def __init__(self, inner: Handler) -> None:
        self._inner = inner

    @staticmethod
    def concerns(kind: type[Request[Any]]) -> bool:
        return kind.remembered

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        if caller.key_id is None or not caller.is_once:
            return self._inner(request, caller)
        scoped = caller._replace(
            request_id=caller.request_id and scoped_id(caller.key_id, caller.request_id),
            answered=_scoped_ids(caller.key_id, caller.answered),
        )
        try:
            return self._inner(request, scoped)
        except RequestExpired as expired:
            raise RequestExpired(str(caller.request_id), expired.age_ms) from None


def scoped_id(key_id: str, request_id: str) -> str:
    """An id of its own for each key, with the same time, by which it is forgotten. The engine refuses values
    that are no request id."""
    raw_id = find_id(request_id)
    if raw_id is None or raw_id[6] >> 4 != 7:
        return request_id
    mixed = sha256(key_id.encode() + raw_id).digest()
    return show_id(
        raw_id[:6] + bytes([0x70 | mixed[0] & 0x0F, mixed[1], 0x80 | mixed[2] & 0x3F]) + mixed[3:10]
    )


def _scoped_ids(key_id: str, request_ids: Sequence[str]) -> Sequence[str]:
    if not isinstance(request_ids, (list, tuple)) or len(request_ids) > MAX_ANSWERED:
        return request_ids
    return [scoped_id(key_id, one) for one in request_ids]
