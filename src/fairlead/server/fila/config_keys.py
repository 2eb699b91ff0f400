"""Fila's spelling of the runtime configuration, over ours.

A throttle is one entry there, `throttle.<name>` = `<rate>,<burst>`, and two here, `throttle:<name>:rate` and
`throttle:<name>:burst`. This door takes both spellings. All other keys are the same.
"""

from __future__ import annotations

from fairlead.decide.throttle import default_burst
from fairlead.errors import ConfigKeyNotFound, InvalidRequest
from fairlead.model.config_keys import THROTTLE, WEIGHT, check_meaning, throttle_entries
from fairlead.server.guarded_groups import GuardedConfig

MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_LISTED = 10_000

_THEIRS = "throttle."
#: Keys that mean something to the engine: an empty value is none, so at this door it deletes.
_WITH_MEANING = (THROTTLE, WEIGHT)


class ConfigKeys:
    def __init__(self, config: GuardedConfig) -> None:
        self._config = config

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
        try:
            # Not from the list, which leaves out what a caller may not see: this says that it may not.
            value = self._config.get(rate)
        except ConfigKeyNotFound:
            raise ConfigKeyNotFound(key) from None
        return _throttle_value(value, self._config.list(burst).get(burst))

    def list(self, prefix: str) -> dict[str, str]:
        """In order of keys. Throttles are spelled Fila's way, unless the prefix asks for ours."""
        if len(prefix.encode()) > MAX_KEY_BYTES:
            raise InvalidRequest("prefix", f"at most {MAX_KEY_BYTES} bytes", prefix)
        if prefix.startswith(THROTTLE):
            return self._config.list(prefix)
        throttles = (
            self._config.list(THROTTLE) if _THEIRS.startswith(prefix) or prefix.startswith(_THEIRS) else {}
        )
        found = {
            key: value
            for key, value in self._config.list(prefix).items()
            if not key.startswith((THROTTLE, _THEIRS))
        }
        for key, rate in throttles.items():
            name, _, field = key.removeprefix(THROTTLE).rpartition(":")
            if field == "rate" and (_THEIRS + name).startswith(prefix):
                found[_THEIRS + name] = _throttle_value(rate, throttles.get(throttle_entries(name)[1]))
        return dict(sorted(found.items()))

    def _set_throttle(self, key: str, value: str) -> None:
        """Burst before rate: a new throttle begins with its rate, and then has its burst."""
        rate_key, burst_key = _spelled_ours(key)
        if not value:
            self._delete(rate_key)
            self._delete(burst_key)
            return
        rate, _, burst = [part.strip() for part in value.partition(",")]
        try:
            # Both before either is set: a throttle must not be half changed.
            check_meaning(rate_key, rate)
            check_meaning(burst_key, burst)
        except InvalidRequest as wrong:
            raise InvalidRequest(
                key, f"'<rate>,<burst>', with {wrong.expected} as {wrong.field.rpartition(':')[2]}", value
            ) from None
        self._config.set(burst_key, burst)
        self._config.set(rate_key, rate)

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
    return throttle_entries(name)


def _throttle_value(rate: str, burst: str | None) -> str:
    """A rate without a burst has the engine's."""
    return f"{rate},{burst if burst is not None else f'{default_burst(float(rate)):g}'}"
