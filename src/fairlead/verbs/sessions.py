"""Sessions: numbered requests of a client, each with one effect however often it is sent."""

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
    """What a session does with a verb. An answer is remembered in the transaction of its effect, so there must be one
    transaction. A verb that may be repeated freely simply runs.
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
    #: A request of the session that is synced covers its opening; a closing that a power cut undoes is done by time.
    durable = False

    def authorize(self, rights: Rights) -> Request[Answer]:
        """Any right will do: a key without one could only fill the store."""
        if not rights.grants():
            raise Forbidden("some right", "*")
        return self


@verb("open_session")
class OpenSession(_SessionRequest[SessionInfo], frozen=True):
    """Make a session, or see how far one has come. Its requests take the numbers 1, 2, 3, ...

    A session belongs to the API key that opened it: the same name from another key is another session. It is
    forgotten when nobody has used it for a day; a request that comes later is refused with `SessionExpired`.
    """

    #: Whoever completes messages may have to open one first, so it uses the upper part of the reserve.
    room = Room.LEASES

    session: SessionName


@verb("close_session")
class CloseSession(_SessionRequest[bool], frozen=True):
    """Forget a session and its answers now, and not a day after its last use. Returns whether there was one.

    Later requests of the session are refused with `SessionExpired`. Leave a session to its time if a copy of
    one of its requests may still be on its way: behind a late copy of `open_session` it would be carried out again.
    """

    room = Room.FITS

    session: SessionName
