"""The law of batches: however messages share calls, each ends as it would have alone, one step after the
other.

Random pipelines of single steps and batch steps, with random failures. The oracle computes each message by
itself.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fairlead
from fairlead import FailureReason
from fairlead.runbook.model import StepSpec
from fairlead.testing import open_in_memory
from fairlead.worker.plan import read_carry
from tests.sampling import sampled
from tests.worker.scene import QUEUE, burst, runbook
from tests.worker.scripted_steps import WAYS, value_of
from tests.worker.steps import read_journal

ATTEMPTS = 3
NAMES = ("a", "b", "c")


@dataclass
class Draft:
    """`trouble`: by step, how it fails and how often. `broken`: the payload is not JSON."""

    stream: str | None
    trouble: dict[str, tuple[str, int]]
    broken: bool = False


@dataclass
class Ending:
    """`calls`: each step that is called, with the failed attempts before it and the value it is given."""

    calls: set[tuple[str, int, str | None]]
    reasons: list[str]
    done: dict[str, str]
    dead: bool


def alone(draft: Draft, n: int, names: tuple[str, ...]) -> Ending:
    ending = Ending(set(), [], {}, False)
    if draft.broken:
        return Ending(set(), ["serialization_error"] * ATTEMPTS, {}, True)
    value = None
    for name in names:
        way, times = draft.trouble.get(name, ("", 0))
        for _ in range(times):
            ending.calls.add((name, len(ending.reasons), value))
            ending.reasons.append(WAYS[way])
            if len(ending.reasons) == ATTEMPTS:
                ending.dead = True
                return ending
        ending.calls.add((name, len(ending.reasons), value))
        value = ending.done[name] = value_of({"n": n}, name)
    return ending


def pipeline(*sizes: int | None) -> list[StepSpec]:
    """One step for each size: a batch step of that size, or a single step."""

    def spec(name: str, size: int | None) -> StepSpec:
        if size is None:
            return StepSpec(name, run="tests.worker.scripted_steps:one")
        return StepSpec(name, run="tests.worker.scripted_steps:many", batch=True, batch_size=size)

    return [spec(name, size) for name, size in zip(NAMES, sizes, strict=False)]


def pipelines() -> st.SearchStrategy[list[StepSpec]]:
    sizes = st.lists(st.sampled_from([None, 1, 2, 3, 10, 1000]), min_size=1, max_size=3).filter(any)
    return sizes.map(lambda found: pipeline(*found))


def drafts(ways: list[str], max_rows: int) -> st.SearchStrategy[list[Draft]]:
    trouble = st.dictionaries(
        st.sampled_from(NAMES), st.tuples(st.sampled_from(ways), st.integers(1, 2)), max_size=2
    )
    draft = st.builds(
        Draft,
        st.sampled_from([None, None, "x", "y", "z"]),
        st.one_of(st.just({}), st.just({}), trouble),
        st.sampled_from([False] * 9 + [True]),
    )
    return st.lists(draft, min_size=1, max_size=max_rows)


def check(steps: list[StepSpec], drafts: list[Draft], isolate: str, concurrency: int) -> None:
    names = tuple(step.name for step in steps)
    endings = [alone(draft, n, names) for n, draft in enumerate(drafts)]
    with tempfile.TemporaryDirectory() as folder, open_in_memory(durability="os") as broker:
        journal = str(Path(folder) / "journal.jsonl")
        again = {"policy": "immediate", "attempts": ATTEMPTS}
        broker.create_queue(QUEUE, retry=again, retry_in_stream=again)
        messages = [
            fairlead.NewMessage(payload(draft, n, names, journal), stream=draft.stream)
            for n, draft in enumerate(drafts)
        ]
        ids = broker.enqueue_many(QUEUE, messages)
        counts = burst(broker, runbook(*steps, isolate=isolate, concurrency=concurrency)).counts
        dead = {letter.id: letter for letter in broker.peek(f"{QUEUE}.dlq", limit=1000)}
        stats = broker.stats(QUEUE)
        calls = read_journal(journal)
    assert (stats.ready, stats.waiting, stats.leased) == (0, 0, 0)
    assert counts.completed == sum(not ending.dead for ending in endings)
    assert set(dead) == {message for message, ending in zip(ids, endings, strict=True) if ending.dead}
    for message, ending in zip(ids, endings, strict=True):
        if ending.dead:
            assert [
                FailureReason(failure.reason).word for failure in dead[message].failures
            ] == ending.reasons
            assert read_carry("pipeline", dead[message].carry) == {
                name: json.dumps(value).encode() for name, value in ending.done.items()
            }
    check_calls(calls, drafts, endings, names)


def payload(draft: Draft, n: int, names: tuple[str, ...], journal: str) -> bytes:
    script, before = {}, 0
    for name in names:
        way, times = draft.trouble.get(name, ("", 0))
        before += times
        script[name] = (way, before)
    return b"\xff" if draft.broken else json.dumps({"n": n, "journal": journal, "script": script}).encode()


def check_calls(
    calls: list[dict[str, Any]], drafts: list[Draft], endings: list[Ending], names: tuple[str, ...]
) -> None:
    """Calls happen where the oracle says and nowhere else, with the value of the step before.

    No confirmed step is called again, and streams stay in order.
    """
    tries = [
        (n, call["step"], attempts, value)
        for call in calls
        for n, attempts, value in zip(call["rows"], call["attempts"], call["values"], strict=True)
    ]
    for n, ending in enumerate(endings):
        own = [(step, attempts, value) for row, step, attempts, value in tries if row == n]
        assert set(own) == ending.calls, f"message {n}"
        assert [names.index(step) for step, _, _ in own] == sorted(names.index(step) for step, _, _ in own), (
            f"message {n}: {own}"
        )
    for stream in {draft.stream for draft in drafts if draft.stream}:
        begun = [n for n, *_ in tries if drafts[n].stream == stream]
        assert begun == sorted(begun), f"stream {stream}: {begun}"
    for call in calls:
        streams = [drafts[n].stream for n in call["rows"] if drafts[n].stream]
        assert len(set(streams)) == len(streams)


# Each example starts a worker, and a process where messages may kill theirs.
_FEW = {"suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large], "deadline": None}


@settings(max_examples=sampled(6, of=25), **_FEW)  # type: ignore[arg-type]
@given(steps=pipelines(), drafts=drafts(["raise", "exit", "say", "nan"], 40), concurrency=st.integers(1, 3))
def test_in_threads_each_message_ends_as_it_would_have_alone(
    steps: list[StepSpec], drafts: list[Draft], concurrency: int
) -> None:
    check(steps, drafts, "thread", concurrency)


#: Rows of a failed batch come back while another message has been started and waits for the only slot.
ROWS_COME_BACK_WHILE_ONE_IS_STARTED = [
    Draft(None, {}),
    Draft(None, {"a": ("exit", 2)}),
    Draft("z", {}, broken=True),
    Draft("y", {"b": ("die", 2), "c": ("die", 1)}),
    Draft("y", {}),
    Draft(None, {}),
    Draft("z", {"a": ("die", 1)}),
    Draft(None, {"b": ("say", 2)}),
    Draft("y", {}),
    Draft("z", {}),
    Draft("z", {}),
]


@settings(max_examples=6, **_FEW)  # type: ignore[arg-type]
@given(steps=pipelines(), drafts=drafts(sorted(WAYS), 25), concurrency=st.integers(1, 2))
@example(steps=pipeline(10, 3, None), drafts=ROWS_COME_BACK_WHILE_ONE_IS_STARTED, concurrency=1)
def test_in_processes_that_die_each_message_ends_as_it_would_have_alone(
    steps: list[StepSpec], drafts: list[Draft], concurrency: int
) -> None:
    check(steps, drafts, "process", concurrency)
