"""Sessions: a client's numbered requests, each with one effect however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal

from msgspec import Meta

from fairlead.errors import Forbidden, InvalidRequest
from fairlead.model.limits import MAX_SESSION_NAME_BYTES
from fairlead.model.session import SessionInfo
from fairlead.request import Answer, Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights

Rule = Literal["remembered", "runs", "refused"]


def session_rule(kind: type[Request[Any]], *, is_one_transaction: bool) -> Rule:
    """How a session treats a verb. An answer is remembered in the transaction of its effect, so the verb must
    be one transaction. A verb that may be repeated freely just runs again.
    """
    if kind.answers_secret:
        return "refused"
    if is_one_transaction and kind.room is not Room.READS:
        return "remembered"
    return "runs" if kind.repeatable else "refused"


def check_accepted(request: Request[Any], rule: Rule) -> None:
    if rule != "refused" or request.is_repeatable():
        return
    why = "whose answer is a secret" if request.answers_secret else "which is not one transaction"
    raise InvalidRequest("session", f"none with {request.verb_name}, {why}", "one")


SessionName = Annotated[
    str,
    Meta(
        description="A name that no other process uses, such as a random one.",
        min_length=1,
        max_length=MAX_SESSION_NAME_BYTES,
    ),
]


class _SessionRequest(Request[Answer], Generic[Answer], frozen=True):
    repeatable = True
    #: The sync of a request in the session covers its opening. If a power cut undoes a closing, the session
    #: expires later.
    durable = False

    def authorize(self, rights: Rights) -> Request[Answer]:
        """Any right is enough. A key without rights could only fill the store."""
        if not rights.grants():
            raise Forbidden("some right", "*")
        return self


@verb("open_session")
class OpenSession(_SessionRequest[SessionInfo], frozen=True):
    """Open a session, or look up its state. Its requests have the numbers 1, 2, 3, ...

    A session belongs to the API key that opened it: the same name from another key is another session. The
    broker forgets a session that was not used for a day; a later request is refused with `SessionExpired`.
    """

    #: Completing messages may require a session first, so it may use the upper part of the reserve.
    room = Room.LEASES

    session: SessionName


@verb("close_session")
class CloseSession(_SessionRequest[bool], frozen=True):
    """Forget a session and its answers now, instead of a day after its last use. Returns whether the session
    existed.

    Later requests of the session are refused with `SessionExpired`. Let a session expire instead if a copy of
    one of its requests may still arrive: after a late copy of `open_session`, that request would be carried
    out again.
    """

    room = Room.FITS

    session: SessionName
