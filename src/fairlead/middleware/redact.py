"""Removes what the server's rules of redaction hide from messages and explanations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from fairlead.decide.redact import Redaction
from fairlead.model.views import Explanation
from fairlead.request import Answer, Caller, Handler, Request
from fairlead.verbs.inspect import Explain, Find

if TYPE_CHECKING:
    from fairlead.engine.broker import Broker


class Redact:
    def __init__(self, inner: Handler, broker: Broker, redaction: Redaction) -> None:
        self._inner = inner
        self._broker = broker
        self._redaction = redaction

    @staticmethod
    def concerns(kind: type[Request[Any]]) -> bool:
        return kind.shows_messages or kind is Explain

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        answer = self._inner(request, caller)
        if request.shows_messages:
            shown = self._redaction.shown(request.messages_shown(answer))
            return cast(Answer, shown if isinstance(answer, list) else shown[0])
        if type(request) is Explain:
            return cast(Answer, self._explanation(request, cast(Any, answer)))
        return answer

    def _explanation(self, request: Explain, told: Explanation) -> Explanation:
        """An explanation may quote the last error of a message, which may quote the message."""
        if not any(reason.code == "last_error" for reason in told.reasons):
            return told
        info = self._broker.do(Find(request.message_id, request.queue))
        reasons = [replace(one, text=self._redaction.text(info, one.text)) for one in told.reasons]
        return replace(told, reasons=tuple(reasons))
