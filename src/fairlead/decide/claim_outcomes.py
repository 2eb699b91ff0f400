"""The outcomes recorded so far for the members of a numbered claim, and which of them count."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlead.model.consumer import Recorded

#: The stream of a member and its place there, or None if the member has no stream.
StreamOf = Callable[[bytes], tuple[bytes, int] | None]


class ClaimOutcomes:
    """The last outcome of a member counts. A start is no outcome: it never replaces one, and an outcome
    replaces it.
    """

    def __init__(self) -> None:
        self.outcomes: dict[bytes, Recorded] = {}
        #: Members that were started and have no outcome. A dict, because it keeps their order.
        self.begun: dict[bytes, None] = {}
        #: The progress recorded for each member in this claim.
        self.progress: dict[bytes, int] = {}
        #: Members whose outcome blocks the later members of their stream.
        self._stopped: set[bytes] = set()
        self._stops: dict[bytes, int] | None = {}

    def add(self, recorded: Iterable[Recorded]) -> None:
        for one in recorded:
            if one.kind == "start":
                if one.id not in self.outcomes:
                    self.begun[one.id] = None
            elif one.kind == "extend":
                self.progress[one.id] = self.progress.get(one.id, 0) | one.progress
            else:
                self.outcomes[one.id] = one
                self.begun.pop(one.id, None)
                self._stop_or_go(one)

    def _stop_or_go(self, outcome: Recorded) -> None:
        if outcome.kind != "complete":
            self._stopped.add(outcome.id)
        elif outcome.id in self._stopped:
            self._stopped.remove(outcome.id)
        else:
            return
        self._stops = None

    def stops(self, stream_of: StreamOf) -> dict[bytes, int]:
        """The streams that stop within this claim, each with the first place at which it stops."""
        if self._stops is None:
            self._stops = {}
            for member in self._stopped:
                found = stream_of(member)
                if found is not None:
                    stream, place = found
                    self._stops[stream] = min(place, self._stops.get(stream, place))
        return self._stops


def is_outdated(told: int, progress: int) -> bool:
    """Whether an extension is older than the recorded state: it reports less progress than this claim has
    recorded already.

    That happens when another worker has begun the slice since, so the extension's carry is outdated as well.
    """
    return progress != 0 and told | progress == told != progress
