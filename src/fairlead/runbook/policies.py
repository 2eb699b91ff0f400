"""Converts retry policies and queue options between a runbook, the arguments of `create_queue` and the
engine's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.model.durations import show_ms
from fairlead.model.policy import POLICY_FIELDS, FailureBreaker, RetryPolicy, read_policy
from fairlead.model.queue import QueueConfig
from fairlead.runbook.kinds import Choice, Duration, Kind, Number, Schema, WholeNumber, refuse
from fairlead.runbook.source import Node, Problems, subpath, suggestion

_ATTEMPTS = WholeNumber(0, 1_000_000)
_JITTER = Choice(("none", "full"))
POLICY_KEYS: dict[str, tuple[Kind, str]] = {
    "policy": (
        Choice(tuple(POLICY_FIELDS)),
        "kind of the policy; a table without it is the short form",
    ),
    "attempts": (
        _ATTEMPTS,
        "dead on this failure; 0 and 1 mean the first. Default: no limit; in the short form: 0",
    ),
    "cooldown": (Duration(), "`fixed`: the wait"),
    "base": (
        Duration(),
        "`exponential`: the wait after the first failure is base x factor, and each further wait is x factor longer",
    ),
    "factor": (Number(1, 100), "`exponential`: the growth of each wait"),
    "cap": (Duration(), "`exponential`: the longest wait"),
    "jitter": (_JITTER, '`"full"`: the wait is drawn evenly from 0 up to the full wait'),
}
_FIELDS = {kind: ("attempts", *fields) for kind, fields in POLICY_FIELDS.items()}
#: The keys of the short form, which has no `policy`.
_SHORT = ("attempts", "cooldown", "jitter")
_SHORT_FORM = '{ attempts = 3, cooldown = "30s" }'


@dataclass(frozen=True)
class Policy:
    """A retry policy, read into the argument of `create_queue` with every field written out."""

    words: str = f'a policy such as "none" or {{ policy = "exponential", base = "30s", attempts = 10 }}, or in short {_SHORT_FORM}'

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node.value, str):
            kind = POLICY_KEYS["policy"][0].read(node, path, problems)
            return None if kind is None else policy_option(read_policy(kind))
        if not isinstance(node.value, dict):
            return refuse(node, path, problems, self.words)
        if "policy" not in node.value:
            return self._read_short(node, path, problems)
        kind = POLICY_KEYS["policy"][0].read(node.value["policy"], subpath(path, "policy"), problems)
        given = self._read_fields(
            node,
            path,
            ("policy", *(_FIELDS[kind] if kind else POLICY_KEYS)),
            f"policy {kind!r}",
            problems,
        )
        return None if given is None or kind is None else policy_option(read_policy(given))

    def _read_short(self, node: Node, path: str, problems: Problems) -> dict[str, Any] | None:
        given = self._read_fields(
            node, path, _SHORT, f"the short form {_SHORT_FORM}, which has no policy", problems
        )
        if "jitter" in node.value and "cooldown" not in node.value:
            problems.error(node.value["jitter"], subpath(path, "jitter"), "expected together with cooldown")
            return None
        if given is None:
            return None
        if "attempts" not in given:
            problems.warn(
                node,
                subpath(path, "attempts"),
                "missing, so it is 0: a message dies on its first failure; give attempts, or a policy",
            )
        return policy_option(read_policy({"attempts": 0, **given}))

    def _read_fields(
        self, node: Node, path: str, allowed: tuple[str, ...], of: str, problems: Problems
    ) -> dict[str, Any] | None:
        given: dict[str, Any] = {}
        good = True
        for name, part in node.value.items():
            here = subpath(path, name)
            if name in allowed:
                value = POLICY_KEYS[name][0].read(part, here, problems)
                good = good and value is not None
                is_duration = name in ("cooldown", "base", "cap") and value is not None
                given[name] = show_ms(value) if is_duration else value
                continue
            good = False
            owners = [f'"{kind}"' for kind, fields in _FIELDS.items() if name in fields]
            if owners:
                problems.error(part, here, f"not a key of {of}; it belongs to policy = {' or '.join(owners)}")
            else:
                problems.error(part, here, f"unknown key{suggestion(name, allowed)}")
        return given if good else None

    def schema(self) -> Schema:
        return {"$ref": "#/$defs/policy"}


def policy_schema() -> Schema:
    """The schema of a policy, defined once because five keys have a policy."""
    forms: list[Schema] = [
        {"enum": list(_FIELDS)},
        {**_object(_SHORT), "dependentRequired": {"jitter": ["cooldown"]}},
    ]
    for kind, fields in _FIELDS.items():
        form = _object(fields)
        form["properties"]["policy"] = {"const": kind}
        forms.append({**form, "required": ["policy"]})
    return {"anyOf": forms}


def _object(names: tuple[str, ...]) -> Schema:
    properties = {
        name: {"description": POLICY_KEYS[name][1], **POLICY_KEYS[name][0].schema()} for name in names
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def policy_option(policy: RetryPolicy) -> dict[str, Any]:
    """The argument of `create_queue` for a policy, with every field written out."""
    found: dict[str, Any] = {"policy": policy.kind}
    if policy.attempts is not None:
        found["attempts"] = policy.attempts
    if policy.kind == "fixed":
        found |= {"cooldown": show_ms(policy.base_ms), "jitter": policy.jitter}
    if policy.kind == "exponential":
        found |= {
            "base": show_ms(policy.base_ms),
            "factor": policy.factor,
            "cap": show_ms(policy.cap_ms),
            "jitter": policy.jitter,
        }
    return found


def options_of(config: QueueConfig) -> dict[str, Any]:
    """Return every option of a queue as `create_queue` takes it. A duration that is off is "0s", and an
    absent script None.
    """
    found: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(config).items():
        if name == "dedup_window_ms":
            found["dedup"] = _dedup(config)
        elif name.endswith("_ms"):
            found[name.removesuffix("_ms")] = show_ms(value)
        elif name != "dedup_kept":
            found[name] = _option(value)
    return found


def _dedup(config: QueueConfig) -> str:
    if config.dedup_window_ms:
        return show_ms(config.dedup_window_ms)
    return "kept" if config.dedup_kept else "live"


def _option(value: Any) -> Any:
    if isinstance(value, RetryPolicy):
        return policy_option(value)
    if isinstance(value, FailureBreaker):
        return _breaker(value) if value.failures else None
    if isinstance(value, dict):
        return {reason: policy_option(policy) for reason, policy in sorted(value.items())}
    return None if value == "" else value


def _breaker(breaker: FailureBreaker) -> dict[str, Any]:
    return {
        "failures": breaker.failures,
        "within": show_ms(breaker.window_ms),
        "pause": show_ms(breaker.pause_ms),
    }


#: Stored also where they equal the engine's defaults: a runbook queue has defaults of its own for them.
_ALWAYS = ("retry", "dedup", "retain_completed")


def short_options(config: QueueConfig) -> dict[str, Any]:
    """The options that differ from the engine's defaults, and those for which runbooks have their own
    defaults.
    """
    default = options_of(QueueConfig())
    return {
        name: value for name, value in options_of(config).items() if name in _ALWAYS or value != default[name]
    }
