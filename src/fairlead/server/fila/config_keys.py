"""The runtime configuration, in the form that clients of Fila expect.

Lists show a throttle as one entry, `throttle.<name>` = `<rate>,<burst>`, instead of the two stored entries,
`throttle:<name>:rate` and `throttle:<name>:burst`. An empty value deletes a throttle or a weight.
"""

from __future__ import annotations

from fairlead.errors import ConfigKeyNotFound, InvalidRequest
from fairlead.model.config_keys import FILA_THROTTLE, THROTTLE, WEIGHT, throttle_entries
from fairlead.schedule.throttle import default_burst
from fairlead.surface import ConfigGroup

MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_LISTED = 10_000

#: Keys that the engine interprets. An empty value is invalid for them, so at this door it deletes the key.
_WITH_MEANING = (THROTTLE, FILA_THROTTLE, WEIGHT)


class ConfigKeys:
    def __init__(self, config: ConfigGroup) -> None:
        self._config = config

    def set(self, key: str, value: str) -> None:
        _check_key(key)
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise InvalidRequest("value", f"at most {MAX_VALUE_BYTES} bytes", value)
        if not value and key.startswith(_WITH_MEANING):
            self._delete(key)
        else:
            self._config.set(key, value)

    def get(self, key: str) -> str:
        """Raises `ConfigKeyNotFound`."""
        _check_key(key)
        return self._config.get(key)

    def list(self, prefix: str) -> dict[str, str]:
        """Entries in the order of their keys. Throttles have Fila's spelling, unless the prefix has the
        spelling of fairlead.
        """
        if len(prefix.encode()) > MAX_KEY_BYTES:
            raise InvalidRequest("prefix", f"at most {MAX_KEY_BYTES} bytes", prefix)
        if prefix.startswith(THROTTLE):
            return self._config.list(prefix)
        throttles = (
            self._config.list(THROTTLE)
            if FILA_THROTTLE.startswith(prefix) or prefix.startswith(FILA_THROTTLE)
            else {}
        )
        found = {
            key: value
            for key, value in self._config.list(prefix).items()
            if not key.startswith((THROTTLE, FILA_THROTTLE))
        }
        for key, rate in throttles.items():
            name, _, field = key.removeprefix(THROTTLE).rpartition(":")
            if field == "rate" and (FILA_THROTTLE + name).startswith(prefix):
                found[FILA_THROTTLE + name] = _throttle_value(rate, throttles.get(throttle_entries(name)[1]))
        return dict(sorted(found.items()))

    def _delete(self, key: str) -> None:
        """A missing key is no error, as in Fila."""
        try:
            self._config.delete(key)
        except ConfigKeyNotFound:
            return


def _check_key(key: str) -> None:
    if not key or len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidRequest("key", f"a key of 1 to {MAX_KEY_BYTES} bytes", key)


def _throttle_value(rate: str, burst: str | None) -> str:
    """A rate without a burst has the default burst of the engine."""
    return f"{rate},{burst if burst is not None else f'{default_burst(float(rate)):g}'}"
