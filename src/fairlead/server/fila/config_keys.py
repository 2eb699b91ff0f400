"""Fila's spelling of the runtime configuration, over ours.

A throttle is one entry there, `throttle.<name>` = `<rate>,<burst>`, and two here, `throttle:<name>:rate` and
`throttle:<name>:burst`. This door takes both spellings. All other keys are the same.
"""

from __future__ import annotations

import math

from fairlead.broker.broker import Broker
from fairlead.errors import ConfigKeyNotFound, InvalidRequest

MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_LISTED = 10_000

_THEIRS = "throttle."
_OURS = "throttle:"
#: Keys that mean something to the engine: an empty value is none, so at this door it deletes.
_WITH_MEANING = (_OURS, "weight:")
_MOST = 1e9


class ConfigKeys:
    def __init__(self, broker: Broker) -> None:
        self._config = broker.config

    def set(self, key: str, value: str) -> None:
        _check_key(key)
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise InvalidRequest("value", f"at most {MAX_VALUE_BYTES} bytes", value)
        if key.startswith(_THEIRS):
            self._set_throttle(key, value)
        elif not value and key.startswith(_WITH_MEANING):
            self._delete(key)
        else:
            self._config.set(key, value)

    def get(self, key: str) -> str:
        """Raises `ConfigKeyNotFound`."""
        _check_key(key)
        if not key.startswith(_THEIRS):
            return self._config.get(key)
        rate, burst = _spelled_ours(key)
        stored = self._config.list(rate.removesuffix("rate"))
        if rate not in stored:
            raise ConfigKeyNotFound(key)
        return _throttle_value(stored[rate], stored.get(burst))

    def list(self, prefix: str) -> dict[str, str]:
        """In order of keys. Throttles are spelled Fila's way, unless the prefix asks for ours."""
        if len(prefix.encode()) > MAX_KEY_BYTES:
            raise InvalidRequest("prefix", f"at most {MAX_KEY_BYTES} bytes", prefix)
        if prefix.startswith(_OURS):
            return self._config.list(prefix)
        throttles = self._config.list(_OURS) if _THEIRS.startswith(prefix) or prefix.startswith(_THEIRS) else {}
        found = {key: value for key, value in self._config.list(prefix).items() if not key.startswith((_OURS, _THEIRS))}
        for key, rate in throttles.items():
            name, _, field = key.removeprefix(_OURS).rpartition(":")
            if field == "rate" and (_THEIRS + name).startswith(prefix):
                found[_THEIRS + name] = _throttle_value(rate, throttles.get(f"{_OURS}{name}:burst"))
        return dict(sorted(found.items()))

    def _set_throttle(self, key: str, value: str) -> None:
        """Burst before rate: a new throttle begins with its rate, and then has its burst."""
        rate_key, burst_key = _spelled_ours(key)
        if not value:
            self._delete(rate_key)
            self._delete(burst_key)
            return
        parts = [part.strip() for part in value.split(",")]
        if len(parts) != 2 or not 0 <= _number(parts[0]) <= _MOST or not 1 <= _number(parts[1]) <= _MOST:
            raise InvalidRequest(key, "'<rate>,<burst>', with a rate from 0 and a burst from 1 to 1e9", value)
        self._config.set(burst_key, parts[1])
        self._config.set(rate_key, parts[0])

    def _delete(self, key: str) -> None:
        """Deleting what is not there is fine, as in Fila."""
        try:
            self._config.delete(key)
        except ConfigKeyNotFound:
            return


def _check_key(key: str) -> None:
    if not key or len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidRequest("key", f"a key of 1 to {MAX_KEY_BYTES} bytes", key)


def _spelled_ours(key: str) -> tuple[str, str]:
    name = key.removeprefix(_THEIRS)
    if not name:
        raise InvalidRequest("key", "throttle.<name>", key)
    return f"{_OURS}{name}:rate", f"{_OURS}{name}:burst"


def _throttle_value(rate: str, burst: str | None) -> str:
    """A rate without a burst has the engine's: as much as a second brings, and at least one."""
    return f"{rate},{burst if burst is not None else f'{max(1.0, float(rate)):g}'}"


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return -1
    return number if math.isfinite(number) else -1
