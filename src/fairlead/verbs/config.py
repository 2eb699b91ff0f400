"""The runtime configuration. A weight belongs to its queue; every other key belongs to all queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.errors import InvalidRequest
from fairlead.fields import ConfigKey
from fairlead.model.access import EVERYTHING, Right
from fairlead.model.config_keys import WEIGHT
from fairlead.model.limits import MAX_CONFIG_KEY_BYTES, MAX_CONFIG_VALUE_BYTES
from fairlead.model.names import check_queue_name
from fairlead.request import Answer, Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


class ConfigRequest(Request[Answer], frozen=True):
    """A request about one configuration key, which needs the right to administrate what that key concerns."""

    def authorize(self, rights: Rights) -> Request[Answer]:
        rights.need_pattern(Right.ADMIN, queue_of(self.key))  # type: ignore[attr-defined]
        return self


@verb("config.get")
class ConfigGet(ConfigRequest[str], frozen=True):
    """The value of a key. Raises `ConfigKeyNotFound`."""

    repeatable = True

    key: ConfigKey


@verb("config.set")
class ConfigSet(ConfigRequest[None], frozen=True):
    """Set a key. A number is stored as its text. A throttle or weight takes effect with the next message."""

    audited = True
    repeatable = True
    room = Room.GROWS

    key: ConfigKey
    value: Annotated[
        str | float,
        Meta(
            description="Text; a number for throttles and weights, RATE,BURST for throttle.KEY.",
            max_length=MAX_CONFIG_VALUE_BYTES,
        ),
    ]

    def audit_details(self) -> Mapping[str, object]:
        """Values may be secrets of hooks."""
        return {"key": self.key}


@verb("config.delete")
class ConfigDelete(ConfigRequest[None], frozen=True):
    """Delete a key. Raises `ConfigKeyNotFound`."""

    audited = True
    room = Room.FITS

    key: ConfigKey


@verb("config.list")
class ConfigList(Request[dict[str, str]], frozen=True):
    """All keys that begin with `prefix`, with their values."""

    repeatable = True

    prefix: Annotated[
        str, Meta(description="Only keys that begin with it.", max_length=MAX_CONFIG_KEY_BYTES)
    ] = ""

    def visible(self, answer: dict[str, str], rights: Rights) -> dict[str, str]:
        return {key: value for key, value in answer.items() if rights.may(Right.ADMIN, queue_of(key))}


def queue_of(key: object) -> str:
    """The queue that a configuration key concerns, or the pattern for everything."""
    if not isinstance(key, str) or not key.startswith(WEIGHT):
        return EVERYTHING
    try:
        return check_queue_name(key.removeprefix(WEIGHT).partition(":")[0])
    except InvalidRequest:
        return EVERYTHING
