"""The interface of every door to the process around it."""

from __future__ import annotations

from typing import Protocol


class Door(Protocol):
    """`address` is the real one after `start`: port 0 picks a free port."""

    name: str
    address: str

    def start(self) -> None: ...

    def drain(self) -> None:
        """From now on a new call is answered with `ServerStopping`; those in flight finish."""

    def stop(self) -> None:
        """Close the door. Returns when its threads have ended, or when a grace period has passed."""
