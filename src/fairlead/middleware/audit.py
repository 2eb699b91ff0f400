"""Records calls before and after they run, and the messages that a caller has read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fairlead.errors import FairleadError
from fairlead.middleware.rights import Rights
from fairlead.request import Answer, Caller, Handler, Request

if TYPE_CHECKING:
    from fairlead.engine.audit_trail import AuditTrail
    from fairlead.engine.broker import Broker


class Entry:
    """What an audited call adds to its entry when it ends."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.details: Mapping[str, object] = {}


@contextmanager
def recorded(
    trail: AuditTrail, caller: Caller, verb: str, queue: str = "", details: Mapping[str, object] | None = None
) -> Iterator[Entry]:
    """Write an entry before the call, and complete it with the outcome after it."""
    entry = Entry()
    record = trail.begin(caller.who, caller.name, caller.source, verb, queue, details)
    try:
        yield entry
    except BaseException as error:
        with suppress(FairleadError):
            trail.finish(record, error.code if isinstance(error, FairleadError) else "failed")
        raise
    trail.finish(record, "done", entry.count, entry.details)


class Audit:
    def __init__(self, inner: Handler, broker: Broker) -> None:
        self._inner = inner
        self._broker = broker

    @staticmethod
    def concerns(kind: type[Request[Any]]) -> bool:
        return kind.audited or kind.shows_messages

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        if request.shows_messages:
            answer = self._inner(request, caller)
            self._record_reading(request, answer, caller)
            return answer
        if not request.is_audited():
            return self._inner(request, caller)
        queue, details = request.audit_queue(), request.audit_details()
        with recorded(self._broker.audit_trail, caller, request.verb_name, queue, details) as entry:
            answer = self._inner(request, caller)
            entry.count, entry.details = request.audit_count(answer), request.audit_result(answer)
        return answer

    def _record_reading(self, request: Request[Any], answer: Any, caller: Caller) -> None:
        """Record messages whose contents the caller may read, before it gets them."""
        infos = request.messages_shown(answer)
        readable = Rights(self._broker, caller).readable(infos)
        read = [info for info in infos if readable[info.queue]]
        if not read:
            return
        details = {"first": read[0].id}
        with recorded(self._broker.audit_trail, caller, request.verb_name, read[0].queue, details) as entry:
            entry.count = len(read)
