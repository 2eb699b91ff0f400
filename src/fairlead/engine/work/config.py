"""The runtime configuration: text by key. Throttles and weights take effect with the fact that stores them."""

from __future__ import annotations

from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.errors import ConfigKeyNotFound, LimitReached
from fairlead.model.checks import check_text
from fairlead.model.config_keys import THROTTLE, stored_entries, stored_keys, throttle_entries
from fairlead.model.limits import (
    MAX_CONFIG_CHARACTERS,
    MAX_CONFIG_KEY_BYTES,
    MAX_CONFIG_KEYS,
    MAX_CONFIG_VALUE_BYTES,
)
from fairlead.records.facts import BucketChanged, ConfigChanged
from fairlead.schedule.throttle import Bucket, default_burst
from fairlead.verbs.config import ConfigDelete, ConfigGet, ConfigList, ConfigSet

_FORGOTTEN_AT_ONCE = 100


def get_value(tx: Transaction, request: ConfigGet) -> str:
    key = check_text(request.key, "key", MAX_CONFIG_KEY_BYTES)
    found = [tx.memory.config.get(entry) for entry in stored_keys(key)]
    value = found[0]
    if value is None:
        raise ConfigKeyNotFound(key)
    if len(found) == 1:
        return value
    burst = f"{default_burst(float(value)):g}" if found[1] is None else found[1]
    return f"{value},{burst}"


def set_value(tx: Transaction, request: ConfigSet) -> None:
    key, value = check_text(request.key, "key", MAX_CONFIG_KEY_BYTES), request.value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = check_text(repr(value) if is_number else value, "value", MAX_CONFIG_VALUE_BYTES, may_be_empty=True)
    entries = stored_entries(key, text)
    _check_room(tx, entries)
    _change(tx, dict(entries))


def delete_value(tx: Transaction, request: ConfigDelete) -> None:
    key = check_text(request.key, "key", MAX_CONFIG_KEY_BYTES)
    entries = [entry for entry in stored_keys(key) if entry in tx.memory.config]
    if not entries:
        raise ConfigKeyNotFound(key)
    _change(tx, dict.fromkeys(entries, None))


def list_values(tx: Transaction, request: ConfigList) -> dict[str, str]:
    prefix = check_text(request.prefix, "prefix", MAX_CONFIG_KEY_BYTES, may_be_empty=True)
    return {key: value for key, value in sorted(tx.memory.config.items()) if key.startswith(prefix)}


def _check_room(tx: Transaction, entries: dict[str, str]) -> None:
    """Check the bound on the configuration, all of which is in memory. A value that takes no more room than
    the one before is always accepted.
    """
    config = tx.memory.config
    new_keys = [entry for entry in entries if entry not in config]
    if new_keys and len(config) + len(new_keys) > MAX_CONFIG_KEYS:
        raise LimitReached("configuration keys", MAX_CONFIG_KEYS)
    more = sum(len(value) - len(config.get(entry, "")) for entry, value in entries.items())
    if more > 0 and sum(map(len, config.values())) + more > MAX_CONFIG_CHARACTERS:
        raise LimitReached("characters of configuration values", MAX_CONFIG_CHARACTERS)


def _change(tx: Transaction, entries: dict[str, str | None]) -> None:
    tx.add(ConfigChanged(entries))
    throttle_keys = {_throttle_key(entry) for entry in entries if entry.startswith(THROTTLE)}
    for throttle_key in throttle_keys:
        _configure_bucket(tx, throttle_key)


def _throttle_key(entry: str) -> str:
    return entry.rpartition(":")[0].removeprefix(THROTTLE)


def _configure_bucket(tx: Transaction, throttle_key: str) -> None:
    """A new bucket is full. A changed one keeps its tokens, clipped to a smaller burst."""
    memory, now_ms = tx.memory, tx.now_ms
    rate_text, burst_text = (memory.config.get(entry) for entry in throttle_entries(throttle_key))
    bucket, idle = memory.buckets.get(throttle_key), memory.idle_buckets.get(throttle_key)
    if rate_text is None:
        if bucket is not None:
            tx.add(BucketChanged(throttle_key, bucket.refilled(now_ms), True, now_ms))
        return
    rate = float(rate_text)
    burst = default_burst(rate) if burst_text is None else float(burst_text)
    if bucket is None and idle is not None and idle.tokens_at(now_ms) < idle.burst:
        # A full idle bucket limits nothing, so it is forgotten.
        bucket = idle
    changed = Bucket(rate, burst, burst, now_ms) if bucket is None else bucket.configured(rate, burst, now_ms)
    tx.add(BucketChanged(throttle_key, changed, False, now_ms))


def forget_full_buckets(tx: Transaction) -> bool:
    """Forget idle buckets that are full again, because they limit nothing. Returns whether one was forgotten."""
    idle = tx.memory.idle_buckets.items()
    full = [key for key, bucket in idle if bucket.tokens_at(tx.now_ms) >= bucket.burst][:_FORGOTTEN_AT_ONCE]
    for throttle_key in full:
        tx.add(BucketChanged(throttle_key, None, True, tx.now_ms))
    return bool(full)


WORK: WorkTable = {
    ConfigGet: get_value,
    ConfigSet: set_value,
    ConfigDelete: delete_value,
    ConfigList: list_values,
}
