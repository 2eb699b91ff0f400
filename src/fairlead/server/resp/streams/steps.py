"""The shape of a command: a generator that yields requests one after the other and receives their answers, or
the errors with which they were refused. Its return value is the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.request import Request

if TYPE_CHECKING:
    from fairlead.server.resp.streams.session import StreamsSession

T = TypeVar("T")

#: Yields requests, receives answers, and returns a result.
Steps = Generator[Request[Any], Any, T]
#: A command: a function from the words after the name to the steps that return the reply.
StreamCommand = Callable[["StreamsSession", Sequence[bytes]], Steps[bytes]]
