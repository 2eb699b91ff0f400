"""Errors of the Redis protocol: one line that begins with the stable code, such as `QUEUE_NOT_FOUND no such
queue`.

For our own clients the line also carries, behind a unit separator, the data to rebuild the error. Works
without pyarrow.
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
    """The line, without the leading `-` and the end of line."""
    fault = fault_of(error)
    line = f"{fault.code.upper()} {_one_line(fault.message)}"
    if not packed:
        return line.encode(errors="replace")
    told = Fault(fault.code, _whole(fault.message), {name: _whole(one) for name, one in fault.fields.items()})
    return line.encode(errors="replace") + _SEPARATOR.encode() + _encode(told)


def read_error(line: str) -> FairleadError:
    """The error of a line, with or without the data to rebuild it."""
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
    """The value with text that can be encoded as UTF-8."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
