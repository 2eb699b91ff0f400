"""What a command is while it is carried out: a generator that yields requests, one after the other, and gets their
answers or the errors of their refusals; its return value is the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.request import Request

if TYPE_CHECKING:
    from fairlead.server.resp.streams.session import StreamsSession

T = TypeVar("T")

#: Requests in, an answer out.
Steps = Generator[Request[Any], Any, T]
#: A command: the words behind its name, in; the reply, out.
StreamCommand = Callable[["StreamsSession", Sequence[bytes]], Steps[bytes]]
