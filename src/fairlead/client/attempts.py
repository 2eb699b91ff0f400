"""The decision after a failed attempt: a pause and another attempt, or an error. Without I/O."""

from __future__ import annotations

from fairlead.client.outage import ConnectionBroken, MayBeMended, Outage
from fairlead.client.patience import Patience
from fairlead.errors import (
    AnswerLost,
    BrokerClosed,
    FairleadError,
    Overloaded,
    RequestExpired,
    ServerStopping,
    ServerUnreachable,
    SessionExpired,
)

#: Failures after which another attempt may succeed.
TROUBLES = (ConnectionBroken, ServerStopping, BrokerClosed, Overloaded)


class Attempts:
    """The attempts of one call."""

    def __init__(
        self,
        verb: str,
        patience: Patience,
        outage: Outage,
        *,
        repeatable: bool,
        is_numbered: bool = False,
    ) -> None:
        self.patience = patience
        self._verb = verb
        self._outage = outage
        self._repeatable = repeatable or is_numbered
        #: The call may be repeated only in its session. If the client gives up, the outcome is unknown.
        self._is_numbered = is_numbered and not repeatable
        #: A copy may have been carried out, because its answer did not come.
        self._was_sent = False

    def within_ms(self, most_ms: int) -> int:
        """The time limit of the next attempt."""
        return min(most_ms, self.patience.left_ms())

    def pause_ms(self, trouble: Exception) -> int:
        """The pause before the next attempt. Raises the error with which the call ends: `AnswerLost` if the
        request may have been carried out and must not be carried out twice, `ServerUnreachable` or
        `Overloaded` when the time is over.
        """
        if isinstance(trouble, ConnectionBroken) and trouble.sent:
            self._was_sent = True
            if not self._repeatable:
                raise AnswerLost(self._verb) from trouble
        self._outage.met(trouble)
        at_least_ms = int(trouble.retry_after_ms) if isinstance(trouble, Overloaded) else 0
        pause_ms = self.patience.next_pause_ms(at_least_ms)
        if pause_ms is None or self.patience.left_ms() <= pause_ms:
            raise self.give_up(trouble)
        return pause_ms

    def check_forgotten(self, expired: SessionExpired | RequestExpired) -> None:
        """Raise `AnswerLost` if an earlier copy may have been carried out: the server no longer knows the
        session or the number.
        """
        if self._was_sent:
            raise AnswerLost(self._verb) from expired

    def give_up(self, trouble: Exception) -> FairleadError:
        if self._was_sent and self._is_numbered:
            return AnswerLost(self._verb)
        if isinstance(trouble, Overloaded):
            return trouble
        if isinstance(trouble, MayBeMended):
            return trouble.error
        return ServerUnreachable(self._outage.address, str(trouble))
