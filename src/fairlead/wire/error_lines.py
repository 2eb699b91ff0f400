"""Errors in the words of the Redis protocol: one line, the stable code first, as in `QUEUE_NOT_FOUND no such queue`.

A client of ours gets, behind a unit separator, what it needs to make the error anew. Without pyarrow.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.errors import FairleadError
from fairlead.wire.faults import Fault, error_of, fault_of

_SEPARATOR = "\x1f"
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Fault)


def error_line(error: BaseException, *, packed: bool = False) -> bytes:
    """Without the `-` before it and the end of the line."""
    fault = fault_of(error)
    line = f"{fault.code.upper()} {_one_line(fault.message)}"
    if not packed:
        return line.encode(errors="replace")
    told = Fault(fault.code, _whole(fault.message), {name: _whole(one) for name, one in fault.fields.items()})
    return line.encode(errors="replace") + _SEPARATOR.encode() + _encode(told)


def read_error(line: str) -> FairleadError:
    """The error of a line, also of one that was written for people."""
    text, _, told = line.partition(_SEPARATOR)
    if told:
        try:
            return error_of(_decoder.decode(told))
        except msgspec.MsgspecError:
            pass
    code, _, message = text.partition(" ")
    return error_of(Fault(code.lower(), message))


def _one_line(text: str) -> str:
    return " ".join(text.replace(_SEPARATOR, " ").splitlines())


def _whole(value: Any) -> Any:
    """Text that can be encoded."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
