"""A broker in memory on a clock that stands still, and the brokers that its callers see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fairlead import Broker
from fairlead.errors import FairleadError
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.model.access import EVERY_RIGHT, Grant, NewKey
from fairlead.request import Caller
from fairlead.testing import ManualClock, open_in_memory


@dataclass(frozen=True)
class Scene:
    clock: ManualClock
    broker: Broker
    access: Layers

    def key(self, *grants: Grant | str, name: str = "a key", expires_in: str | None = None) -> NewKey:
        return self.broker.keys.create(name, grants, expires_in=expires_in)

    def as_key(self, key: NewKey) -> AdmittedCaller:
        return self.access.admit(f"Bearer {key.secret}", "test")

    def with_grants(self, *grants: Grant | str) -> AdmittedCaller:
        return self.as_key(self.key(*grants))

    def all_powerful(self) -> AdmittedCaller:
        return self.with_grants(*EVERY_RIGHT)

    def local(self) -> AdmittedCaller:
        return AdmittedCaller(Layers(self.broker), Caller(None, "local:ann", "data directory"))


@contextmanager
def opened() -> Iterator[Scene]:
    clock = ManualClock()
    with open_in_memory(clock=clock) as broker:
        yield Scene(clock, broker, Layers(broker, keys=True))


def refusal(call: Callable[[], object]) -> str:
    """The code of the error that a call ends with; "" when it does not."""
    try:
        call()
    except FairleadError as error:
        return error.code
    return ""
