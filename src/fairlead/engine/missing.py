"""Verbs and features that the new engine lacks. The lists only get shorter; `make check` prints their length.

A verb that is not in `WORK` is missing; `MISSING_FEATURES` names what verbs in `WORK` leave out.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import InvalidRequest
from fairlead.request import VERBS

MISSING_FEATURES = (
    "streams",
    "hooks",
    "acts of operators by filter",
    "the failure breaker",
    "messages that are kept after completion",
    "max_unsettled_per_key",
    "the store's own time over restarts and clock steps",
    "a timer thread",
    "disk reserve",
    "bodies are read without the lock",
    "several requests share a chunk",
    "a limit of the messages in memory (cold runs, demotion, evacuation)",
    "a limit of 10 ms for a hold of the lock",
    "keys, throttles, hooks and totals in stats",
    "observers and metrics",
    "a limit of the number of queues",
)


def missing_verbs() -> list[str]:
    from fairlead.engine.work import WORK

    return sorted(name for name, verb in VERBS.items() if verb.request not in WORK)


def refuse_missing(streams: Sequence[str]) -> None:
    """Refuse messages that ask for what the engine would ignore."""
    if any(streams):
        raise InvalidRequest("stream", "none: the new engine cannot do this yet", "a stream")


def main() -> None:
    verbs = missing_verbs()
    print(  # noqa: T201 - what `make check` shows
        f"the new engine lacks {len(verbs)} of {len(VERBS)} verbs and {len(MISSING_FEATURES)} features"
        " (src/fairlead/engine/missing.py)"
    )


if __name__ == "__main__":
    main()
