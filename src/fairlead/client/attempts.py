"""What follows a failed attempt of a call: a pause and another attempt, or an error. Without I/O."""

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

#: What another attempt may help with.
TROUBLES = (ConnectionBroken, ServerStopping, BrokerClosed, Overloaded)


class Attempts:
    """Of one call."""

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
        #: Only in its session may it be repeated: when it is given up, nobody knows what became of it.
        self._is_numbered = is_numbered and not repeatable
        #: A copy may have been carried out, because its answer did not come.
        self._was_sent = False

    def within_ms(self, most_ms: int) -> int:
        """How long the next attempt may take."""
        return min(most_ms, self.patience.left_ms())

    def pause_ms(self, trouble: Exception) -> int:
        """How long to wait before the next attempt. Raises what the call ends with: `AnswerLost` when it may have been
        carried out and must not be carried out twice, `ServerUnreachable` or `Overloaded` when time is over.
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
        """The server knows the session or the number no longer: was an earlier copy carried out?"""
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
