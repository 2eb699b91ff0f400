"""Generated runbooks, as trees of plain values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fairlead.model.failure import FailureReason

_FIRST = "abcXYZ019_"
names = st.builds(str.__add__, st.sampled_from(_FIRST), st.text(_FIRST + "-.", max_size=8)).filter(
    lambda name: not name.endswith(".dlq")
)
fields = st.builds(str.__add__, st.sampled_from("abcXY_"), st.text("abcXY_019", max_size=6))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0{}"), max_size=12)
durations = st.builds(
    lambda number, unit: f"{number}{unit}", st.integers(1, 900), st.sampled_from(["ms", "s", "m", "h"])
)
long_durations = st.builds(
    lambda number, unit: f"{number}{unit}", st.integers(1, 90), st.sampled_from(["s", "m", "h"])
)
reasons = st.sampled_from([reason.word for reason in FailureReason])
attempts = st.integers(0, 20)
values = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def _some(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


jitters = st.sampled_from(["none", "full"])
policies = st.one_of(
    st.sampled_from(["none", "immediate", "fixed", "exponential"]),
    _some({"policy": st.sampled_from(["none", "immediate"])}, {"attempts": attempts}),
    _some({"policy": st.just("fixed")}, {"attempts": attempts, "cooldown": durations, "jitter": jitters}),
    _some(
        {"policy": st.just("exponential")},
        {
            "attempts": attempts,
            "base": durations,
            "cap": durations,
            "factor": st.integers(1, 100) | st.floats(1, 100),
            "jitter": jitters,
        },
    ),
    _some({}, {"attempts": attempts}),
    _some({"cooldown": durations}, {"attempts": attempts, "jitter": jitters}),
)
scripts = st.just("function on_enqueue(msg) return {} end") | st.just(
    '-- a "quoted"\n\tfunction on_enqueue(msg) return {}\nend'
)
commands = st.lists(words, min_size=1, max_size=3).filter(lambda command: bool(command[0]))


@st.composite
def persisted(draw: st.DrawFn) -> dict[str, Any]:
    known = draw(st.lists(fields, unique=True, max_size=4))
    found: dict[str, Any] = draw(
        _some(
            {},
            {
                "type": st.just("persisted"),
                "retry": policies,
                "retry_in_stream": policies,
                "retry_on": st.dictionaries(reasons, policies, max_size=2),
                "visibility_timeout": long_durations,
                "dedup": st.sampled_from(["live", "kept", "none", "5m"]),
                "ttl": durations,
                "retain_completed": st.just("0s") | durations,
                "max_attempts": st.integers(0, 50),
                "quantum": st.integers(1, 9),
                "expired_to_dead": st.booleans(),
                "ordering": st.sampled_from(["release", "strict", "none"]),
                "failure_breaker": st.fixed_dictionaries(
                    {"failures": st.integers(1, 99), "within": durations, "pause": durations}
                ),
                "hooks": st.fixed_dictionaries({"on_enqueue": scripts}),
            },
        )
    )
    if known:
        found["vars"] = known
        found["defaults"] = draw(st.dictionaries(st.sampled_from(known), values, max_size=2))
    return found


external = _some({"type": st.just("external"), "list": commands, "take": commands}, {"poll": long_durations})


@st.composite
def steps(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for name in draw(st.lists(names, unique=True, min_size=1, max_size=4)):
        step: dict[str, Any] = {"name": name, **draw(_some({}, {"timeout": durations}))}
        if draw(st.booleans()):
            step["run"] = draw(st.sampled_from(["shop.steps:parse", "a:b.c"]))
            step.update(
                draw(
                    st.sampled_from(
                        [{}, {"batch": False}, {"batch": True}, {"batch": True, "batch_size": 17}]
                    )
                )
            )
        else:
            step["command"] = draw(commands)
            step.update(
                draw(
                    _some(
                        {},
                        {
                            "stdin": st.sampled_from(["json", "none"]),
                            "env": st.dictionaries(fields, words, max_size=2),
                        },
                    )
                )
            )
        found.append(step)
    return found


@st.composite
def runbooks(draw: st.DrawFn) -> dict[str, Any]:
    tree: dict[str, Any] = draw(_some({}, {"project": names}))
    tree["queue"] = draw(st.dictionaries(names, persisted() | external, min_size=1, max_size=3))
    tree["pipeline"] = draw(
        st.dictionaries(names, st.builds(lambda found: {"steps": found}, steps()), min_size=1, max_size=2)
    )
    worker = _some(
        {
            "queue": st.sampled_from(sorted(tree["queue"])),
            "pipeline": st.sampled_from(sorted(tree["pipeline"])),
        },
        {
            "concurrency": st.integers(1, 64),
            "on_stream_failure": st.sampled_from(["wait", "continue"]),
            "isolate": st.just("process"),
            "memory_limit": st.sampled_from(["512MiB", 1 << 28]),
            "prefetch": st.integers(0, 100),
            "reasons": st.dictionaries(
                st.sampled_from(["ValueError", "requests.Timeout"]), reasons, max_size=2
            ),
        },
    )
    tree["worker"] = draw(st.dictionaries(names, worker, max_size=2))
    return tree
