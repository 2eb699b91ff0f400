"""Retry policies and options of a queue, between what a runbook says, what `create_queue` takes and what the
engine keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.model.durations import show_ms
from fairlead.model.policy import FailureBreaker, RetryPolicy, read_policy
from fairlead.model.queue import QueueConfig
from fairlead.runbook.kinds import Choice, Duration, Kind, Number, Schema, WholeNumber, refuse
from fairlead.runbook.source import Node, Problems, subpath, suggestion

_ATTEMPTS = WholeNumber(0, 1_000_000)
_JITTER = Choice(("none", "full"))
POLICY_KEYS: dict[str, tuple[Kind, str]] = {
    "policy": (
        Choice(("none", "immediate", "fixed", "exponential")),
        "what happens after a failure; without it the table is the short form",
    ),
    "attempts": (
        _ATTEMPTS,
        "dead on this failure, 0 and 1 alike; without it there is no limit, but 0 in the short form",
    ),
    "cooldown": (Duration(), "`fixed`: how long to wait"),
    "base": (
        Duration(),
        "`exponential`: waits base x factor after the first failure, x factor again after each further one",
    ),
    "factor": (Number(1, 100), "`exponential`: by how much each wait grows"),
    "cap": (Duration(), "`exponential`: the longest wait"),
    "jitter": (_JITTER, '`"full"`: a wait drawn evenly between nothing and that'),
}
_FIELDS: dict[str, tuple[str, ...]] = {
    "none": ("attempts",),
    "immediate": ("attempts",),
    "fixed": ("attempts", "cooldown", "jitter"),
    "exponential": ("attempts", "base", "factor", "cap", "jitter"),
}
#: Without `policy`: so often, with such a pause.
_SHORT = ("attempts", "cooldown", "jitter")
_SHORT_FORM = '{ attempts = 3, cooldown = "30s" }'


@dataclass(frozen=True)
class Policy:
    """Read into what `create_queue` takes, every field written out."""

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
            node, path, ("policy", *(_FIELDS[kind] if kind else POLICY_KEYS)), f"policy {kind!r}", problems
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
                "missing, so it is 0: the first failure kills; say attempts, or a policy",
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
                given[name] = (
                    show_ms(value) if name in ("cooldown", "base", "cap") and value is not None else value
                )
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
    """Said once, because five keys have a policy."""
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
    """What `create_queue` takes for it, with nothing left implicit."""
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
    """Every option of a queue as `create_queue` takes it. A duration that is off is "0s", a script that is
    not there None.
    """
    found: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(config).items():
        if name == "dedup_window_ms":
            found["dedup"] = show_ms(value) if value else "kept" if config.dedup_kept else "live"
        elif name == "dedup_kept":
            continue
        elif isinstance(value, RetryPolicy):
            found[name] = policy_option(value)
        elif isinstance(value, FailureBreaker):
            breaker = {
                "failures": value.failures,
                "within": show_ms(value.window_ms),
                "pause": show_ms(value.pause_ms),
            }
            found[name] = breaker if value.failures else None
        elif isinstance(value, dict):
            found[name] = {reason: policy_option(policy) for reason, policy in sorted(value.items())}
        elif name.endswith("_ms"):
            found[name.removesuffix("_ms")] = show_ms(value)
        else:
            found[name] = None if value == "" else value
    return found


#: Kept in a spec even where the engine would do the same by itself: they are what a runbook queue has of its
#: own.
_ALWAYS = ("retry", "dedup", "retain_completed")


def short_options(config: QueueConfig) -> dict[str, Any]:
    """The options that make this configuration out of the engine's default, and those that make a runbook
    queue what it is.
    """
    default = options_of(QueueConfig())
    return {
        name: value for name, value in options_of(config).items() if name in _ALWAYS or value != default[name]
    }
