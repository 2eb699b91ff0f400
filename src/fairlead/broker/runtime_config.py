"""The runtime configuration: text by key, kept in the store, live at once.

Two kinds of keys mean something to the engine and are checked: `throttle:<key>:rate`, `throttle:<key>:burst`
and `weight:<queue>:<key>`. `throttle.<key>` = `<rate>,<burst>`, as Fila spells it, is read and written as the
first two. All others are the users' own.
"""

from __future__ import annotations

from fairlead.broker.core import Core
from fairlead.decide.throttle import Bucket, default_burst
from fairlead.errors import ConfigKeyNotFound, LimitReached
from fairlead.model.checks import check_text
from fairlead.model.config_keys import THROTTLE, WEIGHT, stored_entries, stored_keys, throttle_entries
from fairlead.model.facts import ConfigDeleted, ConfigSet
from fairlead.model.limits import (
    MAX_CONFIG_CHARACTERS,
    MAX_CONFIG_KEY_BYTES,
    MAX_CONFIG_KEYS,
    MAX_CONFIG_VALUE_BYTES,
)


def get_value(core: Core, key: str) -> str:
    check_text(key, "key", MAX_CONFIG_KEY_BYTES)
    entries = stored_keys(key)
    with core.lock:
        core.check_open()
        found = [core.store.config(entry).get(entry) for entry in entries]
    value = found[0]
    if value is None:
        raise ConfigKeyNotFound(key)
    if len(entries) == 1:
        return value
    burst = f"{default_burst(float(value)):g}" if found[1] is None else found[1]
    return f"{value},{burst}"


def set_value(core: Core, key: str, value: str | float) -> None:
    check_text(key, "key", MAX_CONFIG_KEY_BYTES)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = check_text(repr(value) if is_number else value, "value", MAX_CONFIG_VALUE_BYTES, may_be_empty=True)
    entries = stored_entries(key, text)
    with core.lock:
        core.check_open()
        _check_room(core, entries)
        _save_bucket(core, next(iter(entries)))
        core.commit([ConfigSet(entry, value) for entry, value in entries.items()])
        for entry in entries:
            apply(core, entry)
        commit = core.store.last_commit
    core.confirm(commit)


def _check_room(core: Core, entries: dict[str, str]) -> None:
    """All of it is held in memory. A value that takes no more room than the one before is always taken."""
    before = [core.store.config(entry).get(entry) for entry in entries]
    keys, chars = core.hooks.config_size
    new_keys = before.count(None)
    if new_keys and keys + new_keys > MAX_CONFIG_KEYS:
        raise LimitReached("configuration keys", MAX_CONFIG_KEYS)
    more = sum(map(len, entries.values())) - sum(len(text or "") for text in before)
    if more > 0 and chars + more > MAX_CONFIG_CHARACTERS:
        raise LimitReached("characters of configuration values", MAX_CONFIG_CHARACTERS)


def delete_value(core: Core, key: str) -> None:
    check_text(key, "key", MAX_CONFIG_KEY_BYTES)
    with core.lock:
        core.check_open()
        entries = [entry for entry in stored_keys(key) if entry in core.store.config(entry)]
        if not entries:
            raise ConfigKeyNotFound(key)
        _save_bucket(core, entries[0])
        core.commit([ConfigDeleted(entry) for entry in entries])
        for entry in entries:
            apply(core, entry)
        commit = core.store.last_commit
    core.confirm(commit)


def list_values(core: Core, prefix: str = "") -> dict[str, str]:
    check_text(prefix, "prefix", MAX_CONFIG_KEY_BYTES, may_be_empty=True)
    with core.lock:
        core.check_open()
        return core.store.config(prefix)


def apply_all(core: Core) -> None:
    """At open: every throttle and weight in force, what their buckets hold, and what hooks may read."""
    core.hooks.load_config(core.store.config())
    for level in core.store.bucket_levels():
        core.buckets.load(
            level.key, Bucket(level.rate, level.burst, level.tokens, core.time.to_steady(level.at_ms))
        )
    for prefix in (THROTTLE, WEIGHT):
        for key in core.store.config(prefix):
            apply(core, key)
    if core.time.may_lack_commits:
        # Claims are not synced: messages may have gone out for which no bucket was charged.
        core.buckets.empty_all(core.clock.monotonic_ms())


def apply(core: Core, key: str) -> None:
    """Bring memory in line with what is stored under a key, now that it has changed."""
    core.hooks.set_config(key, core.store.config(key).get(key))
    if key.startswith(THROTTLE):
        _apply_throttle(core, _throttle_key(key))
    elif key.startswith(WEIGHT):
        queue_name, _, fairness_key = key.removeprefix(WEIGHT).partition(":")
        value = core.store.config(key).get(key)
        if value is None:
            core.weights.pop((queue_name, fairness_key), None)
            return
        core.weights[queue_name, fairness_key] = int(value)
        state = core.by_name.get(queue_name)
        if state is not None:
            state.scheduler.reweigh(fairness_key, int(value))


def _save_bucket(core: Core, key: str) -> None:
    """With the commit that changes its rate or burst, so that what it gained until then is known after a
    crash.
    """
    if key.startswith(THROTTLE):
        core.buckets.save(_throttle_key(key), core.clock.monotonic_ms())


def _throttle_key(key: str) -> str:
    return key.rpartition(":")[0].removeprefix(THROTTLE)


def _apply_throttle(core: Core, throttle_key: str) -> None:
    stored = core.store.config(f"{THROTTLE}{throttle_key}:")
    rate, burst = [stored.get(entry) for entry in throttle_entries(throttle_key)]
    now_ms = core.clock.monotonic_ms()
    if rate is None:
        core.buckets.remove(throttle_key)
    else:
        core.buckets.set(throttle_key, float(rate), None if burst is None else float(burst), now_ms)
    for state in core.by_id.values():
        state.scheduler.bucket_changed(throttle_key, now_ms)
        state.wake_all()
