"""What is kept of answers, and requests whose answers have arrived."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.model.settle import SettleResult

_MOST = 50_000


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is kept under the id of a request. Of an item that was completed, which most are, only the
    message's id.
    """

    settled: list[SettleResult | bytes]
    ids: list[bytes]


class Answered:
    """The latest such ids, at least `most` of them: the store has forgotten them, and a copy may still be on
    its way.

    A caller whose connection broke sends its request again on another, gets the answer and says so, while the
    first copy is still held up in this process, behind a slow hook or a busy core. Without this it would be
    carried out a second time. Nothing of it need survive the process, because neither does what is held up in
    it.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, request_id: bytes) -> bool:
        return request_id in self._young or request_id in self._old

    def add(self, request_ids: Iterable[bytes]) -> None:
        self._young.update(request_ids)
        if len(self._young) >= self._most:
            self._young, self._old = set(), self._young
