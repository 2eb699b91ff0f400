"""Verbs and features that the new engine lacks. The lists only get shorter; `make check` prints their length.

A verb that is not in `WORK` is missing; `MISSING_FEATURES` names what verbs in `WORK` leave out.
"""

from __future__ import annotations

from fairlead.request import VERBS

MISSING_FEATURES = (
    "a limit of the messages in memory for queues that order streams; demotion and evacuation",
    "a limit of 10 ms for some holds of the lock: those that docs/benchmarks.md names (`python -m bench.holds`); a claim"
    " that passes over thousands of keys without messages while others have some; thousands of messages that join a"
    " transaction, or must have their effect once",
)


def missing_verbs() -> list[str]:
    from fairlead.engine.work import WORK, WORK_IN_STEPS

    can_do = WORK.keys() | WORK_IN_STEPS.keys()
    return sorted(name for name, verb in VERBS.items() if verb.request not in can_do)


def main() -> None:
    verbs = missing_verbs()
    print(  # noqa: T201 - what `make check` shows
        f"the new engine lacks {len(verbs)} of {len(VERBS)} verbs and {len(MISSING_FEATURES)} features"
        " (src/fairlead/engine/missing.py)"
    )


if __name__ == "__main__":
    main()
